"""GPT-2's tokenizer from its two files, `vocab.json` and `merges.txt`: all that OPT's published models have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

VOCABULARY, MERGES = "vocab.json", "merges.txt"
_DEFAULT_SPECIAL = "<|endoftext|>"
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def has_byte_level_bpe(folder: Path) -> bool:
    return (folder / VOCABULARY).is_file() and (folder / MERGES).is_file()


def byte_level_bpe(folder: Path) -> tokenizers.Tokenizer:
    """Byte-level BPE with the special tokens of tokenizer_config.json and special_tokens_map.json; a BOS where they
    ask for one. Raises what the library or json raises at a broken file.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE.from_file(str(folder / VOCABULARY), str(folder / MERGES)))
    config = {**_fields(folder / "special_tokens_map.json"), **_fields(folder / "tokenizer_config.json")}
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space") is True)
    tokenizer.decoder = decoders.ByteLevel()
    special = {role: _text(config.get(role)) for role in _ROLES}
    known = [text for text in special.values() if text is not None]
    if tokenizer.token_to_id(_DEFAULT_SPECIAL) is not None:
        known.append(_DEFAULT_SPECIAL)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in dict.fromkeys(known)])
    bos = special["bos_token"]
    if config.get("add_bos_token") is True and bos is not None:
        token = (bos, tokenizer.token_to_id(bos))
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[token])
    return tokenizer


def _fields(file: Path) -> Mapping[str, object]:
    fields = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return fields if isinstance(fields, dict) else {}


def _text(token: object) -> str | None:
    """A special token is written as its text, or as an object with it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
