"""Parses a large body in steps, so that no single one holds the interpreter's lock for long.

A body of ids is all values and no text: orjson takes 100 ms for a list of two million and 600 ms for as many short
lists, in one call that stops every thread. Here long runs of integers are cut out and parsed a piece at a time,
strings are skipped one by one, and what is left is small or the body is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from service.errors import InvalidRequest

LARGE_BYTES = 128 * 1024
"""A smaller body is parsed at once: at most 10 ms, whatever it holds."""
_RUN_BYTES = 4096
_PIECE_BYTES = 64 * 1024
_MAX_REST_BYTES = 512 * 1024

_STRING_OR_RUN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|\[[\s\d,-]{%d,}+\]' % _RUN_BYTES, re.DOTALL)
_RUN_KEY = "\ue000run"
"""Stands for a run. A client that writes it itself gets one of its own lists."""


def parse_large(body: bytes) -> Any:
    """The value; orjson.JSONDecodeError if it is not JSON, InvalidRequest if it holds too many values.

    To be called off the event loop.
    """
    runs: list[list[int]] = []
    rest: list[bytes] = []
    num_rest_bytes, position = 0, 0
    for match in _STRING_OR_RUN.finditer(body):
        between = body[position : match.start()]
        num_rest_bytes = _check_rest(num_rest_bytes + len(between))
        found = match.group()
        if found.startswith(b"["):
            runs.append(_parse_run(found[1:-1]))
            found = b'{"%s":%d}' % (_RUN_KEY.encode(), len(runs) - 1)
        rest += (between, found)
        position = match.end()
    _check_rest(num_rest_bytes + len(body) - position)
    rest.append(body[position:])
    return _put_back(orjson.loads(b"".join(rest)), runs)


def _check_rest(num_bytes: int) -> int:
    if num_bytes > _MAX_REST_BYTES:
        raise InvalidRequest(
            "The body holds too many values: besides strings and long lists of integers it may have at most "
            f"{_MAX_REST_BYTES} bytes."
        )
    return num_bytes


def _parse_run(text: bytes) -> list[int]:
    values: list[int] = []
    if not text.strip():
        return values
    for piece in _pieces(text):
        if not piece.strip():
            raise orjson.JSONDecodeError("a value is missing", "", 0)
        values += orjson.loads(b"[" + piece + b"]")
    return values


def _pieces(text: bytes) -> Iterator[bytes]:
    start = 0
    while (comma := text.find(b",", start + _PIECE_BYTES)) >= 0:
        yield text[start:comma]
        start = comma + 1
    yield text[start:]


def _put_back(value: Any, runs: list[list[int]]) -> Any:
    """The value with each run in its place. Only few values are left to be looked at."""
    if not runs:
        return value
    if isinstance(value, list):
        return [_put_back(item, runs) for item in value]
    if isinstance(value, dict):
        if value.keys() == {_RUN_KEY}:
            index = value[_RUN_KEY]
            return runs[index] if type(index) is int and 0 <= index < len(runs) else value
        return {key: _put_back(item, runs) for key, item in value.items()}
    return value
