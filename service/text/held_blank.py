"""Holds back white space until it is known what follows it."""

from __future__ import annotations


class HeldBlank:
    """The white space at the end of a text that arrives in pieces. Each piece is scanned once, so a model that writes
    nothing but white space costs no more per token."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def push(self, text: str) -> str:
        """What may be shown: what was held and `text`, without its trailing white space; empty if it is all white
        space."""
        shown = text.rstrip()
        if shown:
            before = self.take()
            self._pieces.append(text[len(shown) :])
            return before + shown
        self._pieces.append(text)
        return ""

    def take(self) -> str:
        """Returns what is held, and holds nothing any more."""
        held = "".join(self._pieces)
        self._pieces.clear()
        return held
