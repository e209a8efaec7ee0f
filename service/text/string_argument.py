"""Reads the one string in a call's arguments while they arrive: `{"input": "..."}`, the form of a tool whose input is
free text."""

from __future__ import annotations

import json
from enum import Enum, auto

ARGUMENT = "input"
_HEAD = f'{{"{ARGUMENT}":"'
_BLANK_BEFORE = frozenset({0, 1, len(_HEAD) - 2, len(_HEAD) - 1})
"""Positions in the head before which white space may stand."""
_UNICODE_ESCAPE = 6  # \\uXXXX


class _State(Enum):
    HEAD = auto()
    VALUE = auto()
    DONE = auto()
    OTHER = auto()


class StringArgument:
    """The pieces may be cut anywhere; each character is read a fixed number of times.

    A model without a grammar may write other arguments: those are passed on unchanged. Of arguments that end too early
    nothing is held back but half a character.
    """

    def __init__(self) -> None:
        self._state = _State.HEAD
        self._read: list[str] = []  # of the head
        self._num_matched = 0
        self._escape = ""  # an escape that is incomplete, or a high surrogate without its other half

    def push(self, text: str) -> str:
        """More of the string's value."""
        if self._state is _State.HEAD:
            text = self._read_head(text)
        if self._state is _State.VALUE:
            return self._read_value(text)
        return text if self._state is _State.OTHER else ""

    def _read_head(self, text: str) -> str:
        """The text after the head; everything read so far if it is a different one."""
        for place, char in enumerate(text):
            if char == _HEAD[self._num_matched]:
                self._num_matched += 1
                if self._num_matched == len(_HEAD):
                    self._state = _State.VALUE
                    return text[place + 1 :]
            elif not (char.isspace() and self._num_matched in _BLANK_BEFORE):
                self._state = _State.OTHER
                return "".join(self._read) + text
        self._read.append(text)
        return ""

    def _read_value(self, text: str) -> str:
        said: list[str] = []
        text, self._escape = self._escape + text, ""
        place = 0
        while place < len(text):
            end = _next_mark(text, place)
            said.append(text[place:end])
            if end == len(text):
                break
            if text[end] == '"':
                self._state = _State.DONE
                break
            place = _end_of_escape(text, end)
            if place > len(text):
                self._escape = text[end:]
                break
            said.append(_decoded(text[end:place]))
        return "".join(said)


def _next_mark(text: str, start: int) -> int:
    """Where the string ends or an escape begins; the text's end if there is neither."""
    quote, backslash = text.find('"', start), text.find("\\", start)
    return min(len(text) if mark < 0 else mark for mark in (quote, backslash))


def _end_of_escape(text: str, start: int) -> int:
    """The index after the escape that begins at `start`, with both halves of a pair; beyond the text if it may go
    on."""
    if text[start + 1 : start + 2] != "u":
        return start + 2
    end = start + _UNICODE_ESCAPE
    if text[start + 2 : start + 4].lower() not in ("d8", "d9", "da", "db") or len(text) < end:
        return end
    return end + _UNICODE_ESCAPE if text[end : end + 2] in ("", "\\", "\\u") else end


def _decoded(escape: str) -> str:
    """The escape's character; an invalid escape stays as it is, and half a surrogate pair gives U+FFFD."""
    try:
        return str(json.loads(f'"{escape}"')).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except ValueError:
        return escape
