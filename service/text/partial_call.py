"""A tool call that is read while it arrives, whatever it is written in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto


class CallStatus(Enum):
    """UNSURE: may still turn out to be no call of a known tool. NO_CALL: it is none; nothing was given out."""

    UNSURE = auto()
    OPEN = auto()
    DONE = auto()
    NO_CALL = auto()


@dataclass(frozen=True, slots=True)
class CallText:
    """What is new in a call: its name, once, and the arguments that follow the earlier ones (raw JSON, not parsed)."""

    name: str | None = None
    arguments: str = ""


class PartialCall(ABC):
    """One call. Each character is read once, however the text is cut, since a call may be as long as the output.

    names: of the tools; a call of anything else is not a call.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self.status = CallStatus.UNSURE
        self._name: str | None = None
        self._arguments: list[str] = []  # not passed on yet
        self._pieces: list[str] = []  # of `text`

    def push(self, text: str) -> tuple[CallText, str]:
        """What is new, and the rest of `text`, which follows the call."""
        before = self._name
        num_read = 0
        while num_read < len(text) and self.status in (CallStatus.UNSURE, CallStatus.OPEN):
            self._read(text[num_read])
            num_read += 1
        self._pieces.append(text[:num_read])
        rest = text[num_read:]
        if self._name is None or self.status is CallStatus.NO_CALL:
            return CallText(), rest
        arguments = _with_whole_characters("".join(self._arguments))
        self._arguments.clear()
        return CallText(self._name if before is None else None, arguments), rest

    @property
    def text(self) -> str:
        """Everything that was read; after NO_CALL the caller shows it as text."""
        return "".join(self._pieces)

    @abstractmethod
    def _read(self, char: str) -> None:
        """The next character: may set the status and the name, and append to the arguments."""


def _with_whole_characters(text: str) -> str:
    """Escapes in a model's strings may be halves of surrogate pairs, which no answer can carry: pairs are joined, and
    half a pair alone gives U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
