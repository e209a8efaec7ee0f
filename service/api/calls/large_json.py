"""Parses a large body in steps, so that no single one holds the interpreter's lock for long.

A body of token ids is all values and no text: orjson takes 100 ms for a list of two million and 600 ms for as many
short lists, in one call that stops every thread. Here long runs of integers are cut out and parsed a piece at a time,
strings are skipped, and the rest is small or the body is refused. Every byte is read a fixed number of times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from service.api.calls.nesting import check_nesting
from service.errors import InvalidRequest

LARGE_BYTES = 128 * 1024
"""A smaller body is parsed at once, in at most 10 ms, whatever it holds."""
_RUN_BYTES = 4096
_PIECE_BYTES = 64 * 1024
_STRING_PIECE_BYTES = 1024 * 1024
_MAX_REST_BYTES = 512 * 1024

# No part of these can be given back and tried anew: a pattern that can is quadratic in a string that does not end.
_STRING_OR_RUN = re.compile(rb'"|\[(?=[\s\d,-]{%d})' % _RUN_BYTES)
_IN_STRING = re.compile(rb'(?:[^"\\]++|(?:\\.)++)*+', re.DOTALL)
_RUN = re.compile(rb"\[([\s\d,-]++)\]")
_RUN_KEY = "\ue000run"
"""The placeholder of a run. A client that writes it itself only gets one of its own lists there."""


def parse_large(body: bytes | bytearray) -> Any:
    """The parsed value. orjson.JSONDecodeError if it is not JSON, InvalidRequest if it has too many values or
    is nested too deeply.

    To be called off the event loop.
    """
    runs: list[list[int]] = []
    kept: list[bytes | bytearray] = []
    num_rest_bytes, position = 0, 0
    for start, end, run in _strings_and_runs(body):
        num_rest_bytes += start - position + 1
        if num_rest_bytes > _MAX_REST_BYTES:
            break
        kept.append(body[position:start])
        if run is None:
            kept.append(body[start:end])
        else:
            runs.append(_parse_run(run))
            kept.append(b'{"%s":%d}' % (_RUN_KEY.encode(), len(runs) - 1))
        position = end
    if num_rest_bytes + len(body) - position > _MAX_REST_BYTES:
        raise InvalidRequest(
            "The body holds too many values: besides strings and long lists of integers it may have at most "
            f"{_MAX_REST_BYTES} bytes."
        )
    kept.append(body[position:])
    value = orjson.loads(b"".join(kept))
    check_nesting(value)
    return _put_back(value, runs)


def _strings_and_runs(body: bytes | bytearray) -> Iterator[tuple[int, int, bytes | None]]:
    """Start and end of each string and of each run, and the bytes of a run. Ends early where the rest is larger than
    allowed."""
    position = end = 0
    while found := _STRING_OR_RUN.search(body, position, end + _MAX_REST_BYTES + _RUN_BYTES):
        start, position = found.span()
        if found.group() == b'"':
            position = end = _end_of_string(body, position)
            yield start, end, None
        elif run := _RUN.match(body, start):
            position = end = run.end()
            yield start, end, run.group(1)


def _end_of_string(body: bytes | bytearray, position: int) -> int:
    """The index after the closing quote of the string that began before `position`, or the body's end if there is
    none."""
    while True:
        inside = _IN_STRING.match(body, position, position + _STRING_PIECE_BYTES)
        assert inside is not None
        end = inside.end()
        if body[end : end + 1] == b'"':
            return end + 1
        if end == position:  # at the body's end, or before a last backslash
            return len(body)
        position = end


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
    """The value with the runs back in their places. Few values are left to walk, at any depth."""
    whole = [value]
    unseen: list[Any] = [whole] if runs else []
    while unseen:
        holder = unseen.pop()
        for place, item in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if isinstance(item, dict) and item.keys() == {_RUN_KEY}:
                index = item[_RUN_KEY]
                if type(index) is int and 0 <= index < len(runs):
                    holder[place] = runs[index]
                    continue
            if isinstance(item, list | dict):
                unseen.append(item)
    return whole[0]
