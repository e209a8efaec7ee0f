"""The interface of a terminal, and the plain one: lines in, text out, standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

PROMPT, GOES_ON = "> ", ". "


class Piece(NamedTuple):
    """A piece of an answer, or of the reasoning before it."""

    text: str
    is_reasoning: bool = False


class Terminal(Protocol):
    """is_interactive: a user types, and is shown more than the answers, such as their speed."""

    is_interactive: bool

    def read(self, prompt: str = PROMPT) -> str:
        """The user's next line; EOFError at the end, KeyboardInterrupt at Ctrl-C."""
        ...

    def note(self, text: str) -> None:
        """Shows a message of the program, of one or several lines."""
        ...

    def fault(self, text: str) -> None:
        """Shows an error."""
        ...

    def answer(self) -> AbstractContextManager[Callable[[Piece], None]]:
        """For one answer: gives a function to be called with each piece as it comes."""
        ...


class PlainTerminal:
    """read, write: lines and text, unchanged. Without an interactive user no prompts are shown."""

    def __init__(self, read: Callable[[str], str], write: Callable[[str], None], *, is_interactive: bool) -> None:
        self.is_interactive = is_interactive
        self._read = read
        self._write = write

    def read(self, prompt: str = PROMPT) -> str:
        return self._read(prompt if self.is_interactive else "")

    def note(self, text: str) -> None:
        self._write(f"{text}\n")

    def fault(self, text: str) -> None:
        self._write(f"[failed: {text}]\n")

    @contextmanager
    def answer(self) -> Iterator[Callable[[Piece], None]]:
        """Reasoning is shown in brackets."""
        was_reasoning = has_shown = False

        def show(piece: Piece) -> None:
            nonlocal was_reasoning, has_shown
            has_shown = True
            if piece.is_reasoning != was_reasoning:
                self._write("[thinking: " if piece.is_reasoning else "]\n")
                was_reasoning = piece.is_reasoning
            self._write(piece.text)

        try:
            yield show
        finally:
            if has_shown:
                self._write("]\n" if was_reasoning else "\n")
