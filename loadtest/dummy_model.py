"""Model folders with seeded random weights in real shapes, for speed comparisons: nothing is downloaded, and every
server loads the same file. transformers writes them, so the format is the one that other servers read.
"""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a Llama-architecture model with tied embeddings."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    max_model_len: int = 2048


LLAMA_135M = LlamaShape("llama-135m", 576, 1536, 30, 9, 3, 49152)

NUM_SPECIAL_TOKENS = 3


def default_cache() -> Path:
    """Where model folders are kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "headrace" / "dummy-models"


def dummy_llama(shape: LlamaShape, cache: Path, seed: int = 0) -> Path:
    """The model folder (bf16 weights, no tokenizer), made on the first call. The same seed gives the same weights."""
    folder = cache / f"{shape.name}-seed{seed}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as unfinished:
            _save(shape, seed, Path(unfinished) / "model")
            (Path(unfinished) / "model").rename(folder)
    return folder


def with_word_tokenizer(folder: Path) -> Path:
    """A folder beside `folder` with the same weights and a tokenizer whose word `t123` is token 123.

    With it, servers that take only text can get token-exact prompts, made by `word_prompt`. The first
    `NUM_SPECIAL_TOKENS` ids are special and have no word.
    """
    sibling = folder.with_name(f"{folder.name}-words")
    if not sibling.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            made = Path(unfinished) / "model"
            made.mkdir()
            for file in folder.iterdir():
                (made / file.name).symlink_to(file.resolve())
            _save_word_tokenizer(made, json.loads((folder / "config.json").read_text())["vocab_size"])
            made.rename(sibling)
    return sibling


def word_prompt(token_ids: list[int]) -> str:
    """The text that the word tokenizer turns into these ids. None of them may be special."""
    return " ".join(f"t{token}" for token in token_ids)


def _save(shape: LlamaShape, seed: int, folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.max_model_len,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)


def _save_word_tokenizer(folder: Path, vocab_size: int) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {f"t{token}": token for token in range(vocab_size)}
    for token in range(NUM_SPECIAL_TOKENS):
        words[f"<{token}>"] = words.pop(f"t{token}")
    tokenizer = Tokenizer(WordLevel(words, unk_token="<2>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    make: Any = PreTrainedTokenizerFast
    make(tokenizer_object=tokenizer, unk_token="<2>", eos_token="<1>", pad_token="<2>").save_pretrained(folder)
