"""Small real tokenizers with templates in the manner of well-known models."""

from __future__ import annotations

from collections.abc import Mapping

from service.finetune.training_text import ModelText
from service.settings.quickstart import QUICKSTART_MODEL
from service.text.chat_template import ChatTemplate, load_chat_template
from service.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

DROPS_REASONING = (
    "{%- set ns = namespace(last=0) %}"
    "{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}"
    "{%- endfor %}"
    "{%- for message in messages %}"
    "{%- set content = message.content %}"
    "{%- if message.role == 'assistant' and loop.index0 < ns.last %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}"
    "{%- elif message.role == 'assistant' and '</think>' not in content %}"
    "{%- set content = '<think>\n\n</think>\n\n' + content %}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""As Qwen3's: the last turn has its reasoning, or an empty one; earlier turns have none."""

TRIMS = (
    "{{ '<|bos|>' }}{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + ' ' + message.content | trim + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}"
)

LLAMA_2 = (
    "{% for message in messages %}{% if message.role == 'user' %}{{ '<s>[INST] ' + message.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + message.content + ' </s>' }}{% endif %}{% endfor %}"
)
"""Without a generation prompt of its own; its tokenizer puts a space before every text."""

OPENS_REASONING = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
"""The model is asked behind an opened reasoning that the template does not show of turns that are over."""


def model_text(source: str, tokenizer: Tokenizer | None = None, end_id: int | None = 2) -> ModelText:
    tokenizer = tokenizer or Tokenizer(tiny_tokenizers.byte_level())
    return ModelText(tokenizer, ChatTemplate(source, {}), end_id, tokenizer.num_tokens)


def quickstart() -> ModelText:
    tokenizer = Tokenizer.from_folder(QUICKSTART_MODEL)
    return ModelText(tokenizer, load_chat_template(QUICKSTART_MODEL), 1, 3072)


def all_models() -> Mapping[str, ModelText]:
    return {
        "quickstart": quickstart(),
        "smollm2": model_text(SMOLLM2),
        "drops reasoning": model_text(DROPS_REASONING),
        "trims": model_text(TRIMS),
        "tools": model_text(tiny_tokenizers.TOOL_TEMPLATE),
        "puts a space first": model_text(LLAMA_2, Tokenizer(tiny_tokenizers.byte_fallback())),
    }
