"""Splits a streamed Markdown text where a block is complete: later text changes nothing before such a place."""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class MarkdownBlocks:
    """A block ends at a blank line outside a code fence, or at the end of a fence."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._unended = ""
        self._fence = ""

    @property
    def rest(self) -> str:
        """The text that belongs to no complete block yet."""
        return "".join(self._lines) + self._unended

    def push(self, text: str) -> list[str]:
        """The blocks that this text completes."""
        *lines, self._unended = (self._unended + text).split("\n")
        return [block for line in lines if (block := self._add(f"{line}\n"))]

    def flush(self) -> str:
        """The rest, which the end completes."""
        rest, self._lines, self._unended, self._fence = self.rest, [], "", ""
        return rest

    def _add(self, line: str) -> str:
        """The block that ends with this line; empty if none does."""
        self._lines.append(line)
        if not self._ends_block(line):
            return ""
        block, self._lines = "".join(self._lines), []
        return block if block.strip() else ""

    def _ends_block(self, line: str) -> bool:
        found = _FENCE.match(line)
        if self._fence:
            if found and found[1].startswith(self._fence) and not line[found.end() :].strip():
                self._fence = ""
                return True
            return False
        if found:
            self._fence = found[1]
        return not line.strip()
