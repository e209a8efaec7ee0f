"""Masks of grammars on their way to the other ranks: a message of their own, behind that of their plan.

They are computed beside the forward pass, on rank 0 alone, which tells them when it needs them itself. A plan with
masks is followed by exactly one such message, whatever becomes of it; other plans may stand between them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from service.core.grammar import TokenMasks
from service.distributed.control_ring import Message, MessageKind, MessageWriter

_SHAPE = struct.Struct("<qq")


class ToldMasks:
    """Rank 0's masks of a plan: the first wait for them tells the others, too."""

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
        """The plan is computed, or has failed: if nobody has waited for them, the others need not either."""
        if not self._is_told:
            self._is_told = True
            self._writer.write(MessageKind.MASKS_FAILED)


def _packed(bits: memoryview) -> bytes:
    assert bits.shape is not None
    num_masks, num_words = bits.shape
    return _SHAPE.pack(num_masks, num_words) + bits.tobytes()


class HeardMasks:
    """The same masks on another rank. read: have the next message read, which may be theirs."""

    def __init__(self, rows: tuple[int, ...], read: Callable[[], None]) -> None:
        self.rows = rows
        self._read = read
        self._message: Message | None = None
        self._bits: memoryview | None = None

    def hear(self, message: Message) -> None:
        """Their own."""
        self._message = message

    def wait(self) -> memoryview:
        """Raises RuntimeError where rank 0 has none: it fails with its plan, and so must this rank."""
        while self._message is None:
            self._read()
        if self._message.kind is not MessageKind.MASKS:
            raise RuntimeError("rank 0 has no masks for this plan")
        if self._bits is None:
            shape = _SHAPE.unpack_from(self._message.payload)
            self._bits = memoryview(self._message.payload)[_SHAPE.size :].cast("i", shape)
        return self._bits
