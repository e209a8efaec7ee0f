"""Request fields that the user sets for every answer, with `/set NAME VALUE`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_OURS = {
    "messages": "type a message",
    "model": "/model",
    "stream": "answers are always streamed",
    "stream_options": "answers are always streamed",
    "n": "one answer is shown at a time",
    "tools": "tools are for programs",
}


class FieldError(ValueError):
    """What is wrong with a field, for the user."""


class RequestFields:
    """Whether a field and its value are valid is left to the server."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)

    def all(self) -> dict[str, Any]:
        return dict(self._fields)

    def change(self, text: str) -> str:
        """`NAME VALUE` sets a field, `NAME` removes it; returns what was done. Raises FieldError."""
        name, _, value = text.partition(" ")
        if name in _OURS:
            raise FieldError(f"{name} cannot be set here: {_OURS[name]}")
        if not name.isidentifier():
            raise FieldError(f"{name!r} is not the name of a request field, such as temperature")
        if value.strip():
            self._fields[name] = _value_of(value.strip())
        elif self._fields.pop(name, None) is None:
            raise FieldError(f"{name} is not set; /set {name} VALUE sets it")
        return self.describe(name)

    def describe(self, name: str) -> str:
        if name not in self._fields:
            return f"{name} is left to the server"
        return f"{name} is {json.dumps(self._fields[name], ensure_ascii=False)}"


def _value_of(text: str) -> Any:
    """The JSON value if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
