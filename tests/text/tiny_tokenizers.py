"""Small real tokenizers, made in memory: byte-level BPE as in GPT-2, and byte-fallback BPE as in SentencePiece."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = [
    "Headrace is a small service that streams tokens. The quick brown fox jumps over the lazy dog.",
    "What is continuous batching? Requests join and leave the batch at every iteration.",
    "user assistant system hello world one two three four five six seven eight nine ten stop END",
]

BOS, START, END = "<|bos|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def byte_level_json() -> str:
    """Special tokens 0 (BOS, put before completions), 1 and 2 (end of turn); reasoning marks are added, plain."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[BOS, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    marks = [AddedToken(mark, normalized=False, special=False) for mark in ("<think>", "</think>")]
    tokenizer.add_tokens(marks)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return str(tokenizer.to_str())


def byte_level() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(byte_level_json())


ADDED_TOKENS: dict[str, dict[str, bool]] = {
    "qwen2.5": {
        **dict.fromkeys(["<|endoftext|>", "<|object_ref_start|>", "<|vision_start|>", "<|image_pad|>"], True),
        **dict.fromkeys(["<tool_call>", "</tool_call>", "<|repo_name|>", "<|file_sep|>"], False),
        **dict.fromkeys(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], False),
    },
    "qwen3": {
        **dict.fromkeys(["<|endoftext|>", "<|object_ref_start|>", "<|vision_start|>", "<|image_pad|>"], True),
        **dict.fromkeys(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"], False),
        **dict.fromkeys(["<think>", "</think>"], False),
    },
    "hermes": {
        "<|begin_of_text|>": True,
        **dict.fromkeys(["<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>"], False),
    },
    "llama3": dict.fromkeys(["<|begin_of_text|>", "<|start_header_id|>", "<|eot_id|>", "<|python_tag|>"], True),
    "mistral": dict.fromkeys(["<s>", "</s>", "[INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"], True),
}
"""Of some of the tokens that were added to real vocabularies: text -> whether it is a special one."""


def with_added(model: str) -> tokenizers.Tokenizer:
    """The byte-level tokenizer with the added tokens of `model` behind its own."""
    tokenizer = byte_level()
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False, special=special) for text, special in ADDED_TOKENS[model].items()]
    )
    return tokenizer


def byte_fallback() -> tokenizers.Tokenizer:
    """As Llama 2's: spaces are `▁`, unknown characters are bytes, a space is put before the text and taken away."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    letters = sorted({char for text in TEXT for char in text if char != " "})
    words = ["he", "ll", "hell", "hello", "▁hello", "▁w", "or", "wor", "▁wor", "▁worl", "▁world", "is", "▁is"]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys([*pieces, *letters, *words]))}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello"), ("▁", "w"), ("o", "r")]
    merges += [("w", "or"), ("▁", "wor"), ("▁wor", "l"), ("▁worl", "d"), ("i", "s"), ("▁", "is")]
    model = models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def write_folder(folder: Path) -> Path:
    """A model folder's text half: tokenizer.json and tokenizer_config.json with a chat template."""
    (folder / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": {"content": END, "special": True},
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


TOOL_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n# Tools\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\n' }}"
    "{% endfor %}{{ 'Answer with <tool_call>{...}</tool_call>.<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + call.function | tojson + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% if thinking %}{{ '<think>\n' }}{% endif %}"
    "{% endif %}"
)
"""Reasoning and tools, in the manner of Qwen 3."""
