"""Turns llguidance's error messages into messages for clients."""

from __future__ import annotations

import re

_MOST_CHARACTERS = 200
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")


def grammar_fault(error: str) -> str:
    """A short reason that names the keyword at fault, at most 200 characters.

    It is llguidance's first line, since the others repeat the grammar. A line about the library's own options, types or
    functions is reworded.
    """
    lines = [line.strip() for line in error.splitlines() if line.strip() and not line.startswith("<non-verbose")]
    text = lines[0] if lines else "no output can satisfy it"
    faults = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if text.endswith("regex parse error:") and faults:
        text = f"pattern {lines[1]}: {faults[0]}"
    else:
        text = _PLACE.sub(r"line \1, column \2: ", _reworded(text))
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."


def _reworded(text: str) -> str:
    if text == "NoExtensionBias":  # no byte can come first
        return "no output can satisfy it: a $ref or a rule leads only to itself"
    if text.startswith("Pointer '"):
        return f"$ref: {text}"
    if text.startswith("Resource '"):
        resource = text.removeprefix("Resource ").partition(" is not present")[0]
        return f"$ref: {resource} is not in this schema; only references within it, such as '#/$defs/a', are followed"
    if text.startswith("oneOf constraints are not supported"):
        return "oneOf is supported only where no value can match two of its alternatives; use anyOf"
    return text.replace("Unimplemented keys: ", "these keywords are not supported: ")
