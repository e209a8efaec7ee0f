"""Turns llguidance's error messages into messages for clients."""

from __future__ import annotations


def grammar_fault(error: str) -> str:
    """A short reason that names the keyword at fault: llguidance's first line, since the others repeat the grammar."""
    lines = [line.strip() for line in error.splitlines() if line.strip() and not line.startswith("<non-verbose")]
    text = lines[0] if lines else "no output can satisfy it"
    faults = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if text.endswith("regex parse error:") and faults:
        text = f"pattern {lines[1]}: {faults[0]}"
    elif text.startswith(("Pointer '", "Resource '")):
        text = f"$ref: {text}"
    return text if len(text) <= 200 else text[:197] + "..."
