"""Parses one HTTP/1.1 response from the bytes of its connection: the head, then a body that is chunked, has a
length, or ends with the connection.

Only what a client of JSON and event streams needs: trailers are skipped, compression is never asked for, and there is
no upgrade.
"""

import enum


class BadResponseError(Exception):
    """The bytes are not HTTP that this parser understands."""


class _State(enum.Enum):
    HEAD = enum.auto()
    CHUNKED = enum.auto()
    TRAILER = enum.auto()
    LENGTH = enum.auto()
    TO_END = enum.auto()
    COMPLETE = enum.auto()


class ResponseParser:
    """Feed it received bytes; it returns the decoded body as it arrives."""

    __slots__ = ("_buffer", "_remaining", "_state", "headers", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._state = _State.HEAD
        self._buffer = b""
        self._remaining = 0

    @property
    def started(self) -> bool:
        """Whether the head has arrived."""
        return self._state is not _State.HEAD

    @property
    def complete(self) -> bool:
        """Whether the body is complete according to its framing."""
        return self._state is _State.COMPLETE

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may serve another request once this response is complete."""
        return self.headers.get("connection", "").lower() != "close"

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def feed(self, data: bytes) -> bytes:
        """Take received bytes; returns the body bytes decoded from them. Raises BadResponseError."""
        if self._state is _State.CHUNKED:
            return self._feed_chunked(data)
        if self._state is _State.HEAD:
            return self._feed_head(data)
        if self._state is _State.TRAILER:
            self._feed_trailer(data)
            return b""
        if self._state is _State.LENGTH:
            return self._feed_length(data)
        if self._state is _State.TO_END:
            return data
        raise BadResponseError("bytes after the end of the response")

    def feed_eof(self) -> None:
        """Call when the connection has ended; `complete` then says whether the response was whole."""
        if self._state is _State.TO_END:
            self._state = _State.COMPLETE

    def _feed_head(self, data: bytes) -> bytes:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return b""
        head, rest = self._buffer[:end], self._buffer[end + 4 :]
        self._buffer = b""
        self._parse_head(head)
        if self.status == 100:
            self._state = _State.HEAD
            return self._feed_head(rest)
        if rest and self._state is _State.COMPLETE:
            raise BadResponseError("body where there should be none")
        return self.feed(rest) if rest else b""

    def _parse_head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise BadResponseError(f"status line {lines[0][:80]!r}")
        self.status = int(parts[1])
        pairs = (line.partition(":") for line in lines[1:])
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if parts[0] == "HTTP/1.0":
            self.headers.setdefault("connection", "close")
        self._choose_framing()

    def _choose_framing(self) -> None:
        if self.status in (204, 304):
            self._state = _State.COMPLETE
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._state = _State.CHUNKED
        elif "content-length" in self.headers:
            self._remaining = int(self.headers["content-length"])
            self._state = _State.LENGTH if self._remaining else _State.COMPLETE
        else:
            self._state = _State.TO_END

    def _feed_length(self, data: bytes) -> bytes:
        if len(data) > self._remaining:
            raise BadResponseError("body longer than its content-length")
        self._remaining -= len(data)
        if not self._remaining:
            self._state = _State.COMPLETE
        return data

    def _feed_chunked(self, data: bytes) -> bytes:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        bodies: list[bytes] = []
        position, size = 0, len(data)
        while position < size:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                break
            length = _chunk_size(data[position:line_end])
            start = line_end + 2
            if length == 0:
                self._state = _State.TRAILER
                self._feed_trailer(data[start:])
                return b"".join(bodies)
            if start + length + 2 > size:
                break
            bodies.append(data[start : start + length])
            position = start + length + 2
        self._buffer = data[position:]
        return bodies[0] if len(bodies) == 1 else b"".join(bodies)

    def _feed_trailer(self, data: bytes) -> None:
        self._buffer += data
        if self._buffer.startswith(b"\r\n") or b"\r\n\r\n" in self._buffer:
            self._state = _State.COMPLETE
            self._buffer = b""


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.split(b";", 1)[0], 16)
    except ValueError:
        raise BadResponseError(f"chunk size {line[:20]!r}") from None
