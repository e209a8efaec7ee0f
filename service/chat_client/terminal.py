"""What a session needs of a terminal, and the plain one: lines in, text out, nothing but the standard library."""

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
    """is_interactive: somebody types, and sees more than the answers: how fast they came."""

    is_interactive: bool

    def read(self, prompt: str = PROMPT) -> str:
        """What the user types next; EOFError at the end, KeyboardInterrupt at Ctrl-C."""
        ...

    def note(self, text: str) -> None:
        """What the program has to say: a line, or several."""
        ...

    def fault(self, text: str) -> None:
        """What went wrong."""
        ...

    def answer(self) -> AbstractContextManager[Callable[[Piece], None]]:
        """For one answer: what it gives is called with each piece as it comes."""
        ...


class PlainTerminal:
    """read, write: lines and text as they are. Where nobody types, no prompts are shown."""

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
        """Reasoning stands in brackets."""
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
