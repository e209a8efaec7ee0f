"""What a model folder says about its tokenizer besides the vocabulary: special tokens, options, the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """options: the fields of tokenizer_config.json; empty without the file.

    special_tokens: names as templates use them (`bos_token`, `eos_token`, ...) -> their text.
    """

    options: Mapping[str, object]
    special_tokens: Mapping[str, str]


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """Reads tokenizer_config.json and, for special tokens that are missing there, special_tokens_map.json.

    Either file may be missing. ModelLoadError names a broken one.
    """
    options = _read_object(folder / "tokenizer_config.json")
    older = _read_object(folder / "special_tokens_map.json")
    return TokenizerConfig(options, _special_tokens(older) | _special_tokens(options))


def _special_tokens(fields: Mapping[str, object]) -> dict[str, str]:
    """The fields named `..._token`. A token is written as its text, or as an object with its `content`."""
    texts = {}
    for name, value in fields.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            texts[name] = text
    return texts


def _read_object(file: Path) -> dict[str, object]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{file} is not a JSON object")
    return value
