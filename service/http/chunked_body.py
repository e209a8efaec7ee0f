"""Reads the sizes that a chunked body declares, beside the parser, which reports bytes only when they have arrived.

So a client that declares a chunk beyond the limit can be answered before it sends it. Nothing else depends on it: what
it does not understand is left to the parser, and to the limit on the bytes themselves.
"""

from __future__ import annotations

import re

_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")
_MAX_KEPT_BYTES = 18  # of a line with a size: a longer one has too many digits
_CRLF = 2


class ChunkedBody:
    """One body, from its first byte (RFC 9112, 7.1)."""

    def __init__(self) -> None:
        self.declared_bytes = 0
        """Of all chunks so far."""
        self._num_to_skip = 0
        self._size_line = bytearray()
        self._is_over = False

    def feed(self, data: bytes) -> None:
        """The body's next bytes, as they arrived."""
        at = 0
        while at < len(data) and not self._is_over:
            skipped = min(self._num_to_skip, len(data) - at)
            self._num_to_skip -= skipped
            at += skipped
            if at < len(data):
                at = self._read_size_line(data, at)

    def _read_size_line(self, data: bytes, at: int) -> int:
        """Returns the index after what was read of the line."""
        end = data.find(b"\n", at)
        self._size_line += data[at : len(data) if end < 0 else end][: _MAX_KEPT_BYTES - len(self._size_line)]
        if end < 0:
            return len(data)
        self._take(_size_of(bytes(self._size_line)))
        self._size_line.clear()
        return end + 1

    def _take(self, size: int | None) -> None:
        if not size:  # the last chunk, or not a size: the rest is left to the parser
            self._is_over = True
            return
        self.declared_bytes += size
        self._num_to_skip = size + _CRLF


def _size_of(line: bytes) -> int | None:
    """None if it is not a size. Extensions may follow a semicolon."""
    digits = line.partition(b";")[0].strip(b" \t\r")
    return int(digits, 16) if _SIZE.fullmatch(digits) else None
