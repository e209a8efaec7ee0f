"""Reads tool calls written as a Python list while they arrive: `[get_weather(city="Paris"), now()]`."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection

from service.text.json_call import CallStatus, CallText

_CLOSING = {"(": ")", "[": "]", "{": "}"}


class PythonicCall:
    """One call, `name(key=value, ...)`. Each argument comes out as soon as it is complete; see `JsonCall`."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self.text = ""
        self.status = CallStatus.UNSURE
        self._name: str | None = None
        self._arguments = ""
        self._num_arguments = 0
        self._token = ""
        self._quote = ""
        self._escaped = False
        self._stack: list[str] = []

    def push(self, text: str) -> tuple[CallText, str]:
        """What is new, and the rest of `text`, which is not the call's."""
        before = self._name
        rest = ""
        for position, char in enumerate(text):
            if self.status in (CallStatus.DONE, CallStatus.NO_CALL):
                rest = text[position:]
                break
            self.text += char
            self._read(char)
        if self._name is None or self.status is CallStatus.NO_CALL:
            return CallText(), rest
        arguments, self._arguments = self._arguments, ""
        return CallText(self._name if before is None else None, arguments), rest

    def _read(self, char: str) -> None:
        if self._name is None:
            self._read_name(char)
            return
        if self._quote:
            self._read_in_string(char)
        elif char in "'\"":
            self._quote = char
            self._token += char
        elif char in _CLOSING:
            self._stack.append(_CLOSING[char])
            self._token += char
        elif char in ")]}" and self._stack:
            if char != self._stack.pop():
                self._end()
            self._token += char
        elif char == ")":
            self._end_argument()
            self._end()
        elif char == "," and not self._stack:
            self._end_argument()
        else:
            self._token += char

    def _read_in_string(self, char: str) -> None:
        self._token += char
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == self._quote:
            self._quote = ""

    def _read_name(self, char: str) -> None:
        if char != "(":
            self._token += char
            if not any(name.startswith(self._token.lstrip()) for name in self._names):
                self.status = CallStatus.NO_CALL
            return
        name = self._token.strip()
        if name not in self._names:
            self.status = CallStatus.NO_CALL
            return
        self._name, self._token, self.status = name, "", CallStatus.OPEN
        self._arguments = "{"

    def _end_argument(self) -> None:
        text, self._token = self._token.strip(), ""
        if not text:
            return
        key, equals, value = text.partition("=")
        try:
            written = json.dumps(ast.literal_eval(value.strip()), ensure_ascii=False, allow_nan=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            # Words such as true and null of models that mix the two languages, or a bare text.
            written = _json_or_text(value.strip())
        if not equals or not key.strip().isidentifier():
            return
        self._arguments += (", " if self._num_arguments else "") + json.dumps(key.strip()) + ": " + written
        self._num_arguments += 1

    def _end(self) -> None:
        if self.status is CallStatus.OPEN:
            self._arguments += "}"
            self.status = CallStatus.DONE


def _json_or_text(text: str) -> str:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text
