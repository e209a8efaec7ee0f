"""How fast lines of batches start beside other requests: reading a line holds the interpreter that those need."""

from __future__ import annotations

BYTES_PER_S = 128 * 1024
"""Bytes of lines' bodies. Checking, rendering and tokenizing a kilobyte takes up to a millisecond of Python."""

_BYTES_A_LINE = 1024
"""Fixed cost of a line, expressed in bytes."""


class LinePace:
    """Asked once per line; has no clock of its own."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def begins_s(self, num_bytes: int, now_s: float, *, is_beside_others: bool) -> float:
        """When a line of `num_bytes` bytes may start: beside other requests, once the previous line has had its time;
        otherwise now, so that lines without other requests never queue up."""
        begins_s = max(now_s, self._free_s) if is_beside_others else now_s
        self._free_s = begins_s + (_BYTES_A_LINE + num_bytes) / BYTES_PER_S
        return begins_s
