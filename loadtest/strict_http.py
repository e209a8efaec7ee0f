"""A strict reader of HTTP/1.1 responses: anything that RFC 9112 does not allow a server to send is an error.

`http_response.py` reads as a client does, fast and lenient; this one is for testing the server.
"""

import asyncio
import re
from typing import NamedTuple

from loadtest.http_response import BadResponseError

MAX_LINE_BYTES = 1 << 17
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5]\d\d) [ -~]*\r\n")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([\t -~\x80-\xff]*)\r\n")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_MAX_HEADERS = 100
_MAX_BODY_BYTES = 1 << 28


class Answer(NamedTuple):
    """One final response. headers: by lower-case name. closes: the server says that it will close the connection."""

    status: int
    headers: dict[str, str]
    body: bytes
    closes: bool


async def read_answer(
    reader: asyncio.StreamReader, *, method: str = "GET", http_1_0: bool = False, pause_s: float = 0.0
) -> Answer | None:
    """The next response; None if the connection ended before its first byte. Interim responses (100) are skipped.

    method: the request's method, which decides whether a body follows. http_1_0: the request was HTTP/1.0, so the end
    of the connection may end the body. pause_s: waited after each chunk of a body, to play a slow reader.
    Raises BadResponseError; IncompleteReadError or ConnectionError if the connection ends within the response.
    """
    while True:
        line = await _line(reader)
        if not line:
            return None
        found = _STATUS_LINE.fullmatch(line)
        if found is None:
            raise BadResponseError(f"status line {line[:80]!r}")
        status = int(found[1])
        headers = await _headers(reader)
        if status >= 200:
            break
        if status != 100 or headers:
            raise BadResponseError(f"interim answer {status} with {sorted(headers)}")
    said = headers.get("connection", "").lower()
    closes = said != "keep-alive" if http_1_0 else said == "close"
    body = await _body(reader, status, headers, method, may_end_by_close=http_1_0 and closes, pause_s=pause_s)
    return Answer(status, headers, body, closes)


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    while (line := await _line(reader)) != b"\r\n":
        found = _HEADER.fullmatch(line)
        if found is None:
            raise BadResponseError(f"header line {line[:80]!r}")
        name = found[1].decode().lower()
        if name in headers and name in {"content-length", "transfer-encoding", "content-type", "connection"}:
            raise BadResponseError(f"{name} twice")
        headers[name] = found[2].decode("latin-1")
        if len(headers) > _MAX_HEADERS:
            raise BadResponseError("too many headers")
    return headers


async def _body(
    reader: asyncio.StreamReader,
    status: int,
    headers: dict[str, str],
    method: str,
    *,
    may_end_by_close: bool,
    pause_s: float,
) -> bytes:
    length, encoding = headers.get("content-length"), headers.get("transfer-encoding")
    if length is not None and encoding is not None:
        raise BadResponseError("content-length beside transfer-encoding")
    if length is not None and not (length.isascii() and length.isdigit() and int(length) <= _MAX_BODY_BYTES):
        raise BadResponseError(f"content-length {length!r}")
    if method == "HEAD" or status in (204, 304):
        return b""
    if length is not None:
        return await reader.readexactly(int(length))
    if encoding == "chunked":
        return await _chunks(reader, pause_s)
    if encoding is None and may_end_by_close:
        return await reader.read(-1)
    raise BadResponseError(f"nothing says how long the body is (transfer-encoding: {encoding})")


async def _chunks(reader: asyncio.StreamReader, pause_s: float) -> bytes:
    pieces: list[bytes] = []
    while True:
        line = await _line(reader)
        found = _CHUNK_SIZE.fullmatch(line)
        if found is None:
            raise BadResponseError(f"chunk size {line[:80]!r}")
        size = int(found[1], 16)
        piece = await reader.readexactly(size + 2)
        if piece[size:] != b"\r\n":
            raise BadResponseError("no line end after a chunk, or a trailer")
        if not size:
            return b"".join(pieces)
        pieces.append(piece[:size])
        if pause_s:
            await asyncio.sleep(pause_s)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """One line, including its end; empty if the connection was closed before it. Raises IncompleteReadError if the
    connection ended within it."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as fault:
        if fault.partial:
            raise
        return b""
    except asyncio.LimitOverrunError as fault:
        raise BadResponseError("a line without end") from fault
