"""Checks that a file is JSON Lines of objects, while it arrives."""

from __future__ import annotations

import orjson

from service.api.calls.large_json import LARGE_BYTES, parse_large
from service.errors import InvalidRequest

_BLANK = b" \t\r"


class JsonLines:
    """Call `feed` with each piece, then `finish`. InvalidRequest naming the first line that is wrong. Any one thread.

    Lines end at line feeds; blank lines are counted and skipped. No line is kept once it is read, and none holds the
    interpreter's lock for long.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._unfinished = bytearray()
        self._num_lines = 0
        self._has_object = False

    def feed(self, piece: bytes) -> None:
        *whole, rest = piece.split(b"\n")
        for line in whole:
            self._add(line)
            self._read_line()
        self._add(rest)

    def finish(self) -> None:
        """The file is complete."""
        self._read_line()
        if not self._has_object:
            raise InvalidRequest("The file holds no line of JSON.", param="file")

    def _add(self, part: bytes) -> None:
        if len(self._unfinished) + len(part) > self._max_line_bytes:
            raise self._refusal(f"is longer than {self._max_line_bytes} bytes")
        self._unfinished += part

    def _read_line(self) -> None:
        line = bytes(self._unfinished)
        self._unfinished.clear()
        if line.strip(_BLANK):
            try:
                value = parse_large(line) if len(line) > LARGE_BYTES else orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise self._refusal(f"is not valid JSON: {error}") from error
            except InvalidRequest as error:
                raise self._refusal("holds too many values") from error
            if not isinstance(value, dict):
                raise self._refusal("is not a JSON object")
            self._has_object = True
        self._num_lines += 1

    def _refusal(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"Line {self._num_lines + 1} {what}.", param="file", code="invalid_jsonl")
