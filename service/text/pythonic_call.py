"""Reads tool calls written as a Python list while they arrive: `[get_weather(city="Paris"), now()]`."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection

from service.text.partial_call import CallStatus, PartialCall

_CLOSING = {"(": ")", "[": "]", "{": "}"}


class PythonicCall(PartialCall):
    """`name(key=value, ...)`. Each argument is passed on as soon as it is complete."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._num_arguments = 0
        self._token: list[str] = []  # of the name or argument that is being read
        self._quote = ""
        self._escaped = False
        self._stack: list[str] = []

    def _read(self, char: str) -> None:
        if self._name is None:
            self._read_name(char)
            return
        if self._quote:
            self._read_in_string(char)
        elif char in "'\"":
            self._quote = char
            self._token.append(char)
        elif char in _CLOSING:
            self._stack.append(_CLOSING[char])
            self._token.append(char)
        elif char in ")]}" and self._stack:
            if char != self._stack.pop():
                self._end()
            self._token.append(char)
        elif char == ")":
            self._end_argument()
            self._end()
        elif char == "," and not self._stack:
            self._end_argument()
        else:
            self._token.append(char)

    def _read_in_string(self, char: str) -> None:
        self._token.append(char)
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == self._quote:
            self._quote = ""

    def _read_name(self, char: str) -> None:
        if not self._token and char.isspace():
            return
        token = "".join(self._token)  # no longer than a name
        if char != "(":
            self._token.append(char)
            if not any(name.startswith(token + char) for name in self._names):
                self.status = CallStatus.NO_CALL
            return
        if token not in self._names:
            self.status = CallStatus.NO_CALL
            return
        self._name, self.status = token, CallStatus.OPEN
        self._token.clear()
        self._arguments.append("{")

    def _end_argument(self) -> None:
        text = "".join(self._token).strip()
        self._token.clear()
        if not text:
            return
        key, equals, value = text.partition("=")
        try:
            written = json.dumps(ast.literal_eval(value.strip()), ensure_ascii=False, allow_nan=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            # Words such as true and null, of models that mix the two languages, or unquoted text.
            written = _json_or_text(value.strip())
        if not equals or not key.strip().isidentifier():
            return
        self._arguments.append((", " if self._num_arguments else "") + json.dumps(key.strip()) + ": " + written)
        self._num_arguments += 1

    def _end(self) -> None:
        if self.status is CallStatus.OPEN:
            self._arguments.append("}")
            self.status = CallStatus.DONE


def _json_or_text(text: str) -> str:
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text


def _no_constant(word: str) -> None:
    """NaN and Infinity, which Python's reader takes, are no JSON."""
    raise ValueError(word)
