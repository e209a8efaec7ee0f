"""What must hold of a server after a run against it, and the table of what was found."""

from collections.abc import Sequence
from typing import NamedTuple

from loadtest.table import aligned


class Law(NamedTuple):
    """found: None if the run ended before it could be known, which is as bad as beyond `allowed`."""

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
