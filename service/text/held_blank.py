"""Keeps back white space until it is known what follows it."""

from __future__ import annotations


class HeldBlank:
    """The white space at the end of a text that arrives in pieces. Each piece is looked at once: a model that writes
    nothing but white space costs no more for each token of it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def push(self, text: str) -> str:
        """What may be shown: `text` up to its own white space at the end, behind what was held; empty if it is all
        white space."""
        shown = text.rstrip()
        if shown:
            before = self.take()
            self._pieces.append(text[len(shown) :])
            return before + shown
        self._pieces.append(text)
        return ""

    def take(self) -> str:
        """What is held; nothing is held any more."""
        held = "".join(self._pieces)
        self._pieces.clear()
        return held
