"""The results of a batch's lines, written as they come: two files that only grow.

The files themselves tell which lines are done. So a batch can be interrupted in any way and continues with the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import orjson

from service.storage.data_folder import sync_folder

ANSWERS, ERRORS = "output.jsonl", "error.jsonl"
"""File names in a batch's folder."""

_NUMBER = re.compile(rb'\{"id":"batch_req_[0-9a-f]+_(\d+)",')
_BLOCK_BYTES = 1024 * 1024
_OK = 200


class Answer(NamedTuple):
    """status: HTTP status. body: JSON."""

    status: int
    request_id: str
    body: bytes


class LineResult(NamedTuple):
    """outcome: the answer; or (code, message) if the line was not run."""

    number: int
    custom_id: str
    outcome: Answer | tuple[str, str]

    @property
    def is_completed(self) -> bool:
        return isinstance(self.outcome, Answer) and self.outcome.status == _OK

    @property
    def is_failed(self) -> bool:
        """Whether it was answered with an error."""
        return isinstance(self.outcome, Answer) and self.outcome.status != _OK


class Recovered(NamedTuple):
    """done: one byte per line number up to the last line that is done; nonzero if done."""

    done: bytearray
    num_completed: int
    num_failed: int
    num_bytes: int


class BatchOutput:
    """Written by one thread at a time. name: hexadecimal, part of the result ids. folder: the batch's."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.answers = folder / ANSWERS
        self.errors = folder / ERRORS
        self._files = {path: path.open("ab", buffering=0) for path in (self.answers, self.errors)}
        sync_folder(folder)

    def recover(self) -> Recovered:
        """Read which lines are done. An incomplete last line is cut off."""
        done, counts = bytearray(), list[int]()
        for file in self._files.values():
            numbers, num_bytes = _numbers_in(file)
            file.truncate(num_bytes)
            counts.append(len(numbers))
            done += bytes(max(0, max(numbers, default=0) + 1 - len(done)))
            for number in numbers:
                done[number] = 1
        return Recovered(done, counts[0], counts[1], self.num_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes in both files, as long as they are in the folder."""
        return num_result_bytes(self._folder)

    def lines_of(self, results: Sequence[LineResult]) -> tuple[bytes, bytes]:
        """The lines to write: to the answers' file, and to the errors' file."""
        answers = b"".join(self._line(result) for result in results if result.is_completed)
        errors = b"".join(self._line(result) for result in results if not result.is_completed)
        return answers, errors

    def append(self, answers: bytes, errors: bytes) -> None:
        """Write and sync. If it raises OSError, neither file has changed."""
        sizes = {path: os.fstat(file.fileno()).st_size for path, file in self._files.items()}
        try:
            for path, lines in ((self.answers, answers), (self.errors, errors)):
                if lines:
                    _write_all(self._files[path], lines)
                    os.fsync(self._files[path].fileno())
        except OSError:
            for path, size in sizes.items():
                self._files[path].truncate(size)
            raise

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _line(self, result: LineResult) -> bytes:
        response, error = None, None
        if isinstance(result.outcome, Answer):
            status, request_id, body = result.outcome
            response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
        else:
            code, message = result.outcome
            error = {"code": code, "message": message}
        return orjson.dumps(
            {
                "id": f"batch_req_{self._name}_{result.number}",
                "custom_id": result.custom_id,
                "response": response,
                "error": error,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )


def num_bytes_of(path: Path) -> int:
    """Size of the file; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def num_result_bytes(folder: Path) -> int:
    """Bytes of both result files, as long as they are in the batch's folder."""
    return num_bytes_of(folder / ANSWERS) + num_bytes_of(folder / ERRORS)


def _numbers_in(file: BinaryIO) -> tuple[list[int], int]:
    """The line numbers of all complete lines, and the bytes of these lines."""
    numbers, num_bytes, found = list[int](), 0, None
    with open(file.name, "rb") as content:
        while text := content.readline(_BLOCK_BYTES):
            found = found or _NUMBER.match(text)
            if text.endswith(b"\n"):
                assert found is not None, "every line is one of ours"
                numbers.append(int(found.group(1)))
                num_bytes, found = content.tell(), None
    return numbers, num_bytes


def _write_all(file: BinaryIO, lines: bytes) -> None:
    left = memoryview(lines)
    while left:
        left = left[file.write(left) :]
