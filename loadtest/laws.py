"""Conditions that a server must meet after a run against it, and a table of the results."""

from collections.abc import Sequence
from typing import NamedTuple

from loadtest.table import aligned


class Law(NamedTuple):
    """found: the value; None if the run ended before it was known, which counts as broken."""

    words: str
    found: float | None
    allowed: float

    @property
    def holds(self) -> bool:
        return self.found is not None and self.found <= self.allowed


def law_table(laws: Sequence[Law]) -> str:
    lines = [["law", "found", "allowed", ""]]
    for law in laws:
        found = "unknown" if law.found is None else f"{law.found:,.3g}" if law.found < 1000 else f"{law.found:,.0f}"
        lines.append([law.words, found, f"{law.allowed:,.6g}", "" if law.holds else "BROKEN"])
    return aligned(lines, left=(0, 3))
