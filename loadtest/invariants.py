"""Conditions that a server must meet after a run against it, and a table of the results."""

from collections.abc import Sequence
from typing import NamedTuple

from loadtest.table import aligned


class Invariant(NamedTuple):
    """found: the value; None if the run ended before it was known, which counts as broken."""

    words: str
    found: float | None
    allowed: float

    @property
    def holds(self) -> bool:
        return self.found is not None and self.found <= self.allowed


def invariant_table(invariants: Sequence[Invariant]) -> str:
    lines = [["invariant", "found", "allowed", ""]]
    for each in invariants:
        found = "unknown" if each.found is None else f"{each.found:,.3g}" if each.found < 1000 else f"{each.found:,.0f}"
        lines.append([each.words, found, f"{each.allowed:,.6g}", "" if each.holds else "BROKEN"])
    return aligned(lines, left=(0, 3))
