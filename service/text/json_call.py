"""Reads one tool call written as a JSON object while it arrives: `{"name": ..., "arguments": {...}}`."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from service.text.partial_call import CallStatus, PartialCall

_ARGUMENT_KEYS = ("arguments", "parameters")
_CLOSING = {"{": "}", "[": "]"}


class JsonCall(PartialCall):
    """Once the name is known, the arguments are passed on as they are written, character by character."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._stack: list[str] = []  # closing brackets that are expected
        self._in_string = False
        self._escaped = False
        self._key: str | None = None
        self._token: list[str] = []  # of the string or value at depth 1 that is being read
        self._reads_value = False
        self._has_arguments = False
        self._quoted_arguments = False

    def _read(self, char: str) -> None:
        if self._in_string:
            self._read_in_string(char)
        elif char == '"':
            self._in_string = True
            self._note(char)
        elif char in _CLOSING:
            self._note(char)
            self._stack.append(_CLOSING[char])
            if self._stack == ["]"]:
                self._refuse()
        elif char in "}]":
            self._close(char)
        elif len(self._stack) == 1 and char in ":,":
            self._separate(char)
        elif not self._stack and not char.isspace():
            self._refuse()
        else:
            self._note(char)

    def _read_in_string(self, char: str) -> None:
        self._note(char)
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False

    def _note(self, char: str) -> None:
        """One more character of a key or value; arguments are passed on, everything else is kept until it is
        complete."""
        if not self._stack:
            return
        if not self._is_arguments():
            self._token.append(char)
        elif self._token or not char.isspace():
            self._note_argument(char)

    def _note_argument(self, char: str) -> None:
        """Arguments that are written as a string are kept until it is complete. Of others the token is the first
        character."""
        if not self._token:
            self._quoted_arguments, self._has_arguments = char == '"', True
            self._token.append(char)
        elif self._quoted_arguments:
            self._token.append(char)
        if not self._quoted_arguments:
            self._arguments.append(char)

    def _is_arguments(self) -> bool:
        return self._reads_value and self._key in _ARGUMENT_KEYS

    def _close(self, char: str) -> None:
        if not self._stack or self._stack[-1] != char:
            self._refuse()
            return
        if len(self._stack) == 1:
            self._end_value()
            self._stack.pop()
            if self._name is None:
                self._refuse()
            elif self.status is not CallStatus.NO_CALL:
                self._end()
            return
        self._stack.pop()
        self._note(char)

    def _end(self) -> None:
        if not self._has_arguments:
            self._arguments.append("{}")
        self.status = CallStatus.DONE

    def _separate(self, char: str) -> None:
        if char == ":":
            key = _string_or_none(self._token)
            if key is None or self._reads_value:
                self._refuse()
                return
            self._key, self._reads_value = key, True
            self._token.clear()
        else:
            self._end_value()

    def _end_value(self) -> None:
        if self._reads_value and self._key == "name" and self._name is None:
            name = _string_or_none(self._token)
            if name is None or name not in self._names:
                self._refuse()
                return
            self._name = name
            self.status = CallStatus.OPEN  # at once, not where a piece ends: how the text is cut must not matter
        elif self._is_arguments() and self._quoted_arguments:
            self._arguments.append(_string_or_none(self._token) or "")  # some models write the object as a string
        self._key, self._reads_value = None, False
        self._token.clear()

    def _refuse(self) -> None:
        # A call whose name may have been passed on cannot be taken back: it ends where it stopped being a call.
        if self.status is CallStatus.OPEN:
            self._end()
        else:
            self.status = CallStatus.NO_CALL


def _string_or_none(token: Sequence[str]) -> str | None:
    try:
        value = json.loads("".join(token))
    except ValueError:
        return None
    return value if isinstance(value, str) else None
