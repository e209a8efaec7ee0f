"""How grammar masks reach the other ranks: in a message of their own, after their plan's.

Rank 0 alone computes them, beside the forward pass, and sends them when it needs them itself. Every plan with masks is
followed by exactly one such message, even if the plan fails; messages of other plans may come between.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from service.core.grammar import TokenMasks
from service.distributed.control_ring import Message, MessageKind, MessageWriter

_SHAPE = struct.Struct("<qq")


class ToldMasks:
    """Rank 0's masks of a plan; the first `wait` also sends them to the other ranks."""

    def __init__(self, masks: TokenMasks, writer: MessageWriter) -> None:
        self._masks = masks
        self._writer = writer
        self._is_told = False

    @property
    def rows(self) -> Sequence[int]:
        return self._masks.rows

    def wait(self) -> memoryview:
        bits = self._masks.wait()
        if not self._is_told:
            self._is_told = True
            self._writer.write(MessageKind.MASKS, _packed(bits))
        return bits

    def settle(self) -> None:
        """The plan is computed or has failed. If nobody has waited for the masks, tell the other ranks that none will
        come."""
        if not self._is_told:
            self._is_told = True
            self._writer.write(MessageKind.MASKS_FAILED)


def _packed(bits: memoryview) -> bytes:
    assert bits.shape is not None
    num_masks, num_words = bits.shape
    return _SHAPE.pack(num_masks, num_words) + bits.tobytes()


class HeardMasks:
    """The same masks on another rank. read: reads the next message, which may be these masks'."""

    def __init__(self, rows: tuple[int, ...], read: Callable[[], None]) -> None:
        self.rows = rows
        self._read = read
        self._message: Message | None = None
        self._bits: memoryview | None = None

    def hear(self, message: Message) -> None:
        """message: the one with these masks."""
        self._message = message

    def wait(self) -> memoryview:
        """Raises RuntimeError if rank 0 has no masks: its plan fails, and so must this rank's."""
        while self._message is None:
            self._read()
        if self._message.kind is not MessageKind.MASKS:
            raise RuntimeError("rank 0 has no masks for this plan")
        if self._bits is None:
            shape = _SHAPE.unpack_from(self._message.payload)
            self._bits = memoryview(self._message.payload)[_SHAPE.size :].cast("i", shape)
        return self._bits
