"""How fast lines of batches begin beside others: reading one holds the interpreter, which these need at every token."""

from __future__ import annotations

BYTES_PER_S = 128 * 1024
"""Of lines' bodies. To check, render and tokenize a kilobyte takes up to a millisecond of Python."""

_BYTES_A_LINE = 1024
"""What any line costs besides, as if it were of bytes."""


class LinePace:
    """Asked once for each line; no clock of its own."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def begins_s(self, num_bytes: int, now_s: float, *, is_beside_others: bool) -> float:
        """When a line of so many bytes may begin: now, or when those before it have had their time. What is alone waits
        for nothing, and nobody waits for it afterwards."""
        begins_s = max(now_s, self._free_s) if is_beside_others else now_s
        self._free_s = begins_s + (_BYTES_A_LINE + num_bytes) / BYTES_PER_S
        return begins_s
