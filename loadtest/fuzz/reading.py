"""A strict reading of the client's bytes by RFC 9112: the fuzz's oracle.

A reader that accepts what this one rejects may see other requests than the proxy in front of it: that is how requests
are smuggled. So after the requests that are found here, a server may send one refusal and nothing else.
"""

import enum
import re
from typing import NamedTuple

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(
    rb"(" + _TOKEN + rb") +((?:/|\*|[A-Za-z][A-Za-z0-9+.-]*://)[\x21-\x7e]*|[\x21-\x7e]+:\d+) +HTTP/1\.([01])"
)
_HEADER = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t \x21-\x7e\x80-\xff]*)")
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_CHUNK_LINE = re.compile(
    rb"0*([0-9A-Fa-f]{1,15})(?:;(?:" + _TOKEN + rb")?(?:=(?:" + _TOKEN + rb'|"[^"\x00-\x08\x0a-\x1f]*"))?)*'
)
"""Accepts extensions as our server's parser does: no white space around `;`, and the name may be missing. That does not
move the chunk's borders, nor does any number of zeros before a size."""

_METHODS = frozenset(
    b"GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH COPY LOCK MKCOL MOVE PROPFIND PROPPATCH SEARCH UNLOCK BIND"
    b" REBIND UNBIND ACL REPORT MKACTIVITY CHECKOUT MERGE M-SEARCH NOTIFY SUBSCRIBE UNSUBSCRIBE PURGE MKCALENDAR"
    b" LINK UNLINK SOURCE QUERY".split()
)
"""Registered methods. A server may refuse others before it has read the whole head, so they count as malformed."""

_AT_MOST_ONCE = {b"host", b"content-length", b"transfer-encoding"}


class Rest(enum.Enum):
    """What follows the last whole request."""

    NOTHING = enum.auto()
    INCOMPLETE = enum.auto()
    MALFORMED = enum.auto()
    UNREAD = enum.auto()  # the last request asks to close the connection, so the rest is not read


class SeenRequest(NamedTuple):
    """is_1_0: an HTTP/1.0 request, whose answer's body may end with the connection."""

    method: str
    is_1_0: bool


class Reading(NamedTuple):
    """requests: the complete ones. begun: one with a complete head, but an incomplete or malformed body."""

    requests: tuple[SeenRequest, ...]
    rest: Rest
    begun: SeenRequest | None = None


class _Head(NamedTuple):
    request: SeenRequest
    length: int
    is_chunked: bool
    is_last: bool


def read_requests(data: bytes) -> Reading:
    """All complete requests from the start, and what comes after them."""
    requests: list[SeenRequest] = []
    position = 0
    while True:
        while data[position : position + 1] in (b"\r", b"\n"):  # RFC 9112, 2.2: empty lines before a request
            position += 1
        if position == len(data):
            return Reading(tuple(requests), Rest.NOTHING)
        end = data.find(b"\r\n\r\n", position)
        if end < 0:
            return Reading(tuple(requests), Rest.INCOMPLETE)
        head = _read_head(data[position:end])
        if head is None:
            return Reading(tuple(requests), Rest.MALFORMED)
        body_end = _end_of_body(data, end + 4, head)
        if isinstance(body_end, Rest):
            return Reading(tuple(requests), body_end, head.request)
        requests.append(head.request)
        if head.is_last:
            return Reading(tuple(requests), Rest.UNREAD)
        position = body_end


def _read_head(head: bytes) -> _Head | None:
    first, *lines = head.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    pairs = [_HEADER.fullmatch(each) for each in lines]
    if line is None or line[1] not in _METHODS or not all(pairs):
        return None
    headers: dict[bytes, bytes] = {}
    for pair in pairs:
        assert pair is not None
        name = pair[1].lower()
        if name in headers and name in _AT_MOST_ONCE:
            return None
        headers[name] = headers[name] + b"," + pair[2].strip() if name in headers else pair[2].strip(b" \t")
    is_1_0 = line[3] == b"0"
    length, encoding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
    if (b"host" not in headers and not is_1_0) or not _HOST.fullmatch(headers.get(b"host", b"")):
        return None
    if length is not None and not re.fullmatch(rb"\d{1,18}", length):
        return None
    if encoding is not None and (length is not None or is_1_0 or encoding.lower() != b"chunked"):
        return None
    options = {option.strip().lower() for option in headers.get(b"connection", b"").split(b",")}
    is_last = b"close" in options or (is_1_0 and b"keep-alive" not in options) or line[1] == b"CONNECT"
    is_last = is_last or (b"upgrade" in options and b"upgrade" in headers)
    return _Head(SeenRequest(line[1].decode(), is_1_0), int(length or 0), encoding is not None, is_last)


def _end_of_body(data: bytes, start: int, head: _Head) -> int | Rest:
    if not head.is_chunked:
        end = start + head.length
        return end if end <= len(data) else Rest.INCOMPLETE
    while True:
        line_end = data.find(b"\r\n", start)
        if line_end < 0:
            return Rest.INCOMPLETE
        line = _CHUNK_LINE.fullmatch(data[start:line_end])
        if line is None:
            return Rest.MALFORMED
        size, start = int(line[1], 16), line_end + 2
        if not size:
            return _end_of_trailers(data, start)
        if start + size + 2 > len(data):
            return Rest.INCOMPLETE
        if data[start + size : start + size + 2] != b"\r\n":
            return Rest.MALFORMED
        start += size + 2


def _end_of_trailers(data: bytes, start: int) -> int | Rest:
    if data.startswith(b"\r\n", start):
        return start + 2
    end = data.find(b"\r\n\r\n", start)
    if end < 0:
        return Rest.INCOMPLETE
    return end + 4 if all(_HEADER.fullmatch(line) for line in data[start:end].split(b"\r\n")) else Rest.MALFORMED
