"""Reads a multipart/form-data body (RFC 7578) piece by piece, however it is cut.

Memory is bounded by a part's headers and the current piece, and every byte is read a fixed number of times. Starlette's
form is not used: it writes each file to a temporary folder first, outside the storage limit, and its library does not
bound the headers of a part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from enum import Enum, auto
from typing import NamedTuple

from service.errors import InvalidRequest, UnsupportedMediaType

_MAX_HEADER_BYTES = 4096
_MAX_PARTS = 16
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_HEADERS_END = b"\r\n\r\n"


class PartBegin(NamedTuple):
    """name: of the form's field. filename: None if it is not a file."""

    name: str
    filename: str | None


class PartData(NamedTuple):
    """More bytes of the part that has begun."""

    data: bytes


class PartEnd(NamedTuple):
    """The part is complete."""


PartEvent = PartBegin | PartData | PartEnd


class _State(Enum):
    BOUNDARY_END = auto()  # after a boundary: the next part's headers, or the end
    HEADERS = auto()
    DATA = auto()
    OVER = auto()


def boundary_of(content_type: str) -> bytes:
    """The boundary in the Content-Type header; UnsupportedMediaType if the body is not a form."""
    message = Message()
    message["content-type"] = content_type[:_MAX_HEADER_BYTES]
    boundary = message.get_boundary()
    if message.get_content_type() != "multipart/form-data" or not boundary or not _BOUNDARY.fullmatch(boundary):
        raise UnsupportedMediaType("The body must be sent as multipart/form-data, with its boundary.")
    return boundary.encode()


class MultipartReader:
    """Call `feed` with each piece of the body, then `finish`. InvalidRequest if it is not a form as clients send them:
    a preamble before the first boundary, which the standard allows, is refused."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # so that the first boundary looks like all others
        self._state = _State.DATA
        self._is_in_part = False
        self._num_parts = 0

    def feed(self, piece: bytes) -> Iterator[PartEvent]:
        """The events that the piece completes. To be exhausted before the next call."""
        if self._state is _State.OVER:
            return
        self._buffer += piece
        while True:
            event_or_more = self._step()
            if event_or_more is None:
                return
            if not isinstance(event_or_more, bool):
                yield event_or_more

    def finish(self) -> None:
        """The body has ended."""
        if self._state is not _State.OVER:
            raise InvalidRequest("The body ends before its last boundary.")

    def _step(self) -> PartEvent | bool | None:
        """The next event; True if the buffer has more to parse, None if more bytes are needed."""
        match self._state:
            case _State.DATA:
                return self._read_data()
            case _State.BOUNDARY_END:
                return self._read_boundary_end()
            case _State.HEADERS:
                return self._read_headers()
            case _State.OVER:
                return None

    def _read_data(self) -> PartEvent | bool | None:
        at = self._buffer.find(self._delimiter)
        if at > 0 or (at < 0 and len(self._buffer) >= len(self._delimiter)):
            if not self._is_in_part:
                raise InvalidRequest("The body does not begin with its boundary.")
            return PartData(self._take(at if at > 0 else len(self._buffer) - len(self._delimiter) + 1))
        if at < 0:
            return None
        self._take(len(self._delimiter))
        self._state = _State.BOUNDARY_END
        if self._is_in_part:
            self._is_in_part = False
            return PartEnd()
        return True

    def _read_boundary_end(self) -> bool | None:
        if len(self._buffer) < 2:
            return None
        end = self._take(2)
        if end == b"--":
            self._state = _State.OVER
            self._buffer.clear()
            return None
        if end != b"\r\n":
            raise InvalidRequest("A boundary in the body is not followed by a line break.")
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise InvalidRequest(f"The form may have at most {_MAX_PARTS} parts.")
        self._state = _State.HEADERS
        return True

    def _read_headers(self) -> PartEvent | None:
        end = self._buffer.find(_HEADERS_END, 0, _MAX_HEADER_BYTES)
        if end < 0:
            if len(self._buffer) >= _MAX_HEADER_BYTES:
                raise InvalidRequest(f"The headers of a part may have at most {_MAX_HEADER_BYTES} bytes.")
            return None
        part = _part_of(self._take(end))
        self._take(len(_HEADERS_END))
        self._state = _State.DATA
        self._is_in_part = True
        return part

    def _take(self, num_bytes: int) -> bytes:
        taken = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return taken


def _part_of(headers: bytes) -> PartBegin:
    try:
        lines = headers.decode().split("\r\n")
    except UnicodeDecodeError:
        raise InvalidRequest("The headers of a part are not UTF-8.") from None
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if fields.get("content-transfer-encoding", "binary").lower() not in ("binary", "8bit", "7bit"):
        raise InvalidRequest("A part must not be encoded: Content-Transfer-Encoding is not supported.")
    message = Message()
    message["content-disposition"] = fields.get("content-disposition", "")
    name = message.get_param("name", header="content-disposition")
    if message.get_content_disposition() != "form-data" or not isinstance(name, str):
        raise InvalidRequest("A part has no field name in its Content-Disposition header.")
    return PartBegin(name, message.get_filename())
