"""The input file of a batch: one request per line; the whole file is checked before the first one runs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from service.batch_jobs.batch import InputError

MAX_REQUESTS = 50_000
MAX_CUSTOM_ID = 512
_MAX_ERRORS = 100
_FEW_BRACKETS = 200
_REST_EVERY_BYTES = 64 * 1024
_REST_S = 0.001
"""Sleep now and then while reading a long file, since the engine and the event loop need the interpreter, too."""


class BatchLine(NamedTuple):
    """number: of the line in the file, from 1. body: the request's, as JSON."""

    number: int
    custom_id: str
    body: bytes


class CheckedInput(NamedTuple):
    """errors: the first _MAX_ERRORS; empty if all `num_lines` requests may run."""

    num_lines: int
    errors: tuple[InputError, ...]


def check_input(path: Path, endpoint: str) -> CheckedInput:
    """Check that every line is a request to `endpoint` with a unique custom_id. Slow: call in a thread."""
    num_lines, errors = 0, list[InputError]()
    seen = set[bytes]()
    with path.open("rb") as file:
        for number, text in _numbered(file):
            num_lines += 1
            if num_lines > MAX_REQUESTS:
                return CheckedInput(
                    num_lines, (InputError("too_many_requests", f"A batch may have at most {MAX_REQUESTS} requests."),)
                )
            value = _object_of(text)
            error = _error_in(value, number, endpoint) or _error_of_depth(text, value["body"], number)
            if error is None:
                digest = hashlib.blake2b(value["custom_id"].encode(), digest_size=16).digest()
                if digest in seen:
                    error = InputError(
                        "duplicate_custom_id",
                        "custom_id must be unique in the file.",
                        number,
                        "custom_id",
                    )
                seen.add(digest)
            if error is not None:
                errors.append(error)
                if len(errors) == _MAX_ERRORS:
                    break
    if not num_lines:
        errors.append(InputError("empty_file", "The file contains no requests."))
    return CheckedInput(num_lines, tuple(errors))


class BatchReader:
    """Reads the lines of a checked file in order. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._lines = _numbered(self._file)

    def read(self, most_lines: int, most_bytes: int, done: bytearray) -> list[BatchLine]:
        """The next lines that are not done, at least one, until `most_lines` or `most_bytes` is reached; empty at the
        end. done: done[number] is true if that line is done; it may be shorter than the file."""
        lines, num_bytes = list[BatchLine](), 0
        for number, text in self._lines:
            if number < len(done) and done[number]:
                continue
            value = orjson.loads(text)
            lines.append(BatchLine(number, value["custom_id"], orjson.dumps(value["body"])))
            num_bytes += len(text)
            if len(lines) >= most_lines or num_bytes >= most_bytes:
                break
        return lines

    def close(self) -> None:
        self._file.close()


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(line number, line) of all non-blank lines. Their length was limited at upload."""
    num_unrested = 0
    for number, text in enumerate(file, 1):
        num_unrested += len(text)
        if num_unrested > _REST_EVERY_BYTES:
            num_unrested = 0
            time.sleep(_REST_S)
        if text.strip():
            yield number, text


def _object_of(text: bytes) -> dict[str, Any]:
    with suppress(orjson.JSONDecodeError):
        value = orjson.loads(text)
        if isinstance(value, dict):
            return value
    return {}


def _error_of_depth(text: bytes, body: dict[str, Any], number: int) -> InputError | None:
    """orjson writes 254 levels and reads more; the line is written again when it is run."""
    if text.count(b"[") + text.count(b"{") > _FEW_BRACKETS:
        try:
            orjson.dumps(body)
        except orjson.JSONEncodeError:
            return InputError("invalid_body", "body is nested too deeply.", number, "body")
    return None


def _error_in(value: dict[str, Any], number: int, endpoint: str) -> InputError | None:
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        message = f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters."
        return InputError("invalid_custom_id", message, number, "custom_id")
    if value.get("method") != "POST":
        return InputError("invalid_method", "method must be POST.", number, "method")
    if value.get("url") != endpoint:
        return InputError("invalid_url", f"url must be the batch's endpoint, {endpoint}.", number, "url")
    if not isinstance(body, dict):
        return InputError("invalid_body", "body must be an object.", number, "body")
    for name in ("stream", "background"):
        if body.get(name):
            return InputError("unsupported_parameter", f"{name} is not supported in batches.", number, f"body.{name}")
    return None
