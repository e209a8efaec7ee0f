"""Settings that are numbers of tokens, with optional suffixes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

_SHORT_NUMBER = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?([kmgKMG])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30}


def _parse_tokens(value: object) -> object:
    written = _SHORT_NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if written is None:
        return value  # a plain number, or for pydantic to refuse
    whole, fraction, suffix = written.groups(default="")
    if suffix in _DECIMAL:
        return int(whole + fraction) * _DECIMAL[suffix] // 10 ** len(fraction)
    if fraction:
        raise ValueError(
            f"no decimals may stand before {suffix}, which is a power of 1024; use {suffix.lower()}, a power of 1000"
        )
    return int(whole) * _BINARY[suffix]


TokenCount = Annotated[int, BeforeValidator(_parse_tokens)]
"""As vLLM reads it: 8192, 8k (8000), 25.6k (25600), 8K (8192); k, m, g count in 1000s, K, M, G in 1024s."""
