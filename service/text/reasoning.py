"""Separates a model's reasoning from its content: the text between `<think>` and `</think>` at the beginning."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from service.text.held_blank import HeldBlank
from service.text.marker import Marker

OPEN, CLOSE = "<think>", "</think>"


class Split(NamedTuple):
    """A piece of text, split in two; either part may be empty."""

    reasoning: str
    content: str


class _State(Enum):
    BEFORE = auto()
    THINKING = auto()
    SAYING = auto()


class ReasoningSplitter:
    """For one choice; the pieces may be cut anywhere. Blank lines around the reasoning belong to neither part.

    starts_inside: the prompt ended with `<think>`, so the text begins with reasoning.
    """

    def __init__(self, *, starts_inside: bool) -> None:
        self._state = _State.THINKING if starts_inside else _State.BEFORE
        self._held: list[str] = []  # what may become OPEN, with the white space before it
        self._seen = ""  # the same without the white space
        self._blank = HeldBlank()
        self._close = Marker(CLOSE)
        self._at_start = True  # of the reasoning, or of the content after it: blank lines are dropped

    @property
    def is_thinking(self) -> bool:
        return self._state is _State.THINKING

    @property
    def is_between(self) -> bool:
        """Whether the reasoning has ended and no content has come since."""
        return self._state is _State.SAYING and self._at_start

    def push(self, text: str) -> Split:
        if self._state is _State.SAYING and not self._at_start:
            return Split("", text)
        if self._state is _State.BEFORE:
            text = self._begin(text)
        reasoning = self._think(text) if self._state is _State.THINKING else None
        if reasoning is None:
            return Split("", self._say(text))
        before, after = reasoning
        return Split(before, self._say(after))

    def flush(self) -> Split:
        """The text that was held back, after the last piece."""
        if self._state is _State.THINKING:
            return Split(self._blank.take() + self._close.flush(), "")
        return Split("", self._take_held())

    def _begin(self, text: str) -> str:
        """Decides, as soon as possible, whether the text begins with reasoning. Returns the text that is left to
        read."""
        self._held.append(text)
        self._seen = seen = (self._seen + text).lstrip()
        if len(seen) < len(OPEN) and OPEN.startswith(seen):
            return ""
        text = self._take_held()
        if seen.startswith(OPEN):
            self._state = _State.THINKING
            return seen.removeprefix(OPEN)
        self._state, self._at_start = _State.SAYING, False
        return text

    def _think(self, text: str) -> tuple[str, str]:
        """The reasoning in `text`, and the text after its end."""
        if self._at_start:
            text = text.lstrip()
            self._at_start = not text
        reasoning, after = self._close.push(text)
        shown = self._blank.push(reasoning)
        if after is None:
            return shown, ""
        self._blank.take()
        self._state, self._at_start = _State.SAYING, True
        return shown, after

    def _take_held(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        return held

    def _say(self, text: str) -> str:
        if self._state is _State.SAYING and self._at_start:
            text = text.lstrip()
            self._at_start = not text
        return text if self._state is _State.SAYING else ""


def begins_inside(prompt_end: str) -> bool:
    """Whether a prompt with this end has already opened the reasoning."""
    return prompt_end.rstrip().endswith(OPEN)
