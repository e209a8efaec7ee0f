"""Worst inputs of what reads uploaded files."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

from starlette.requests import Request
from starlette.types import Message

from service.api.calls.file_form import FileForm
from service.api.calls.json_lines import JsonLines
from service.api.calls.multipart import MultipartReader, boundary_of
from service.config import ApiConfig
from service.errors import UnsupportedMediaType
from service.storage.upload import Upload
from tests.complexity.growth import Work, WorstInput

CONFIG = ApiConfig(served_model_names=("m",))
_MOST = CONFIG.max_file_bytes
_HEAD = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
_PIECE_BYTES = 64 * 1024


class _Sink:
    """Stands for the disk: what is written is looked at and dropped."""

    async def write(self, piece: bytes, check: object) -> None:
        check(piece)


def _pieces(body: bytes) -> list[bytes]:
    return [body[start : start + _PIECE_BYTES] for start in range(0, len(body), _PIECE_BYTES)]


def _parts(content: bytes) -> Work:
    def work() -> None:
        reader = MultipartReader(b"b")
        for piece in _pieces(_HEAD + content + b"\r\n--b--"):
            for _ in reader.feed(piece):
                pass

    return work


def _lines(content: bytes) -> Work:
    def work() -> None:
        lines = JsonLines(CONFIG.max_line_bytes)
        for piece in _pieces(content):
            lines.feed(piece)
        lines.finish()

    return work


def _upload(content: bytes) -> Work:
    pieces = _pieces(
        _HEAD + content + b'\r\n--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--'
    )

    async def read() -> None:
        left = iter(pieces)

        async def receive() -> Message:
            piece = next(left, None)
            return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

        form = FileForm(b"b", cast(Upload, _Sink()), CONFIG)
        await form.read(Request({"type": "http", "headers": []}, receive))

    return lambda: asyncio.run(read())


def _content_type(header: str) -> Work:
    def work() -> None:
        with contextlib.suppress(UnsupportedMediaType):
            boundary_of(header)

    return work


FILE_INPUTS = [
    WorstInput(
        "an upload: nearly boundaries",
        ("api/calls/multipart.py",),
        lambda n: _parts(b"\r\n--" * (n // 4)),
        4_000_000,
        _MOST,
        "loop",
    ),
    WorstInput(
        "an upload: parts without end of headers",
        ("api/calls/multipart.py",),
        lambda n: _parts(b"\r\n--b\r\n" * n),
        50_000,
        _MOST // 8,
        "loop",
    ),
    WorstInput(
        "a form's content type",
        ("api/calls/multipart.py",),
        lambda n: _content_type("multipart/form-data" + ';boundary="' * n),
        20_000,
        60_000,
        "loop",
    ),
    WorstInput(
        "an upload: short lines",
        ("api/calls/json_lines.py",),
        lambda n: _lines(b"{}\n" * n),
        20_000,
        _MOST // 3,
        "pool",
    ),
    WorstInput(
        "an upload: blank lines",
        ("api/calls/json_lines.py",),
        lambda n: _lines(b"{}" + b"\n" * n),
        50_000,
        _MOST,
        "pool",
    ),
    WorstInput(
        "an upload: a line of integers",
        ("api/calls/json_lines.py",),
        lambda n: _lines(b'{"a":[' + b"1," * n + b"1]}"),
        200_000,
        CONFIG.max_line_bytes // 2,
        "pool",
    ),
    WorstInput(
        "an upload, whole",
        ("api/calls/file_form.py",),
        lambda n: _upload(b'{"a": "x"}\n' * n),
        20_000,
        _MOST // 11,
        "pool",
    ),
]
