"""A batch as the user types it: `["prompt", ...] [max tokens, ...]` (FineInfer, section 3.1). Errors are explained."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

EXAMPLE = '["What is ORCA?", "And PagedAttention?"] [32, 64]'


class BatchItem(NamedTuple):
    """One prompt, and the most tokens that its answer may have."""

    prompt: str
    max_tokens: int


class BatchInputError(ValueError):
    """What is wrong with the text, for the user."""


def parse_batch(text: str) -> list[BatchItem]:
    """Parses two JSON lists: prompts, then as many numbers, or one for all. Raises BatchInputError."""
    prompts, rest = _read_list(text, "the prompts")
    numbers, rest = _read_list(rest, "the numbers of tokens")
    if rest.strip():
        raise BatchInputError(f"nothing may follow the two lists, but {_quoted(rest)} does")
    if not prompts:
        raise BatchInputError("there is no prompt in the first list")
    for prompt in prompts:
        if not isinstance(prompt, str) or not prompt:
            raise BatchInputError(f"a prompt is a text in quotation marks, not {json.dumps(prompt)}")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise BatchInputError(f"a number of tokens is 1 or more, not {json.dumps(number)}")
    if len(numbers) == 1:
        numbers *= len(prompts)
    if len(numbers) != len(prompts):
        raise BatchInputError(
            f"{len(prompts)} prompts, but {len(numbers)} numbers of tokens: one for each, or one for all"
        )
    return [BatchItem(prompt, number) for prompt, number in zip(prompts, numbers, strict=True)]


def _read_list(text: str, what: str) -> tuple[list[Any], str]:
    """The list at the beginning of the text, and the rest of the text."""
    text = text.lstrip()
    if not text.startswith("["):
        found = _quoted(text) if text else "nothing"
        raise BatchInputError(f"{what} stand in square brackets; there is {found}")
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as fault:
        raise BatchInputError(f"{what} cannot be read at {_quoted(text[fault.pos :])}: {fault.msg}") from None
    return value, text[end:]


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 30 else f"{text[:27]}...")
