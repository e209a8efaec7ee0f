"""One sequence's map from logical to physical blocks (PagedAttention, section 4.2).

With blocks of one token it is a row of TokenAttention's table (LightLLM): position -> slot.
"""

from __future__ import annotations

from collections.abc import Sequence

HOLE = -1
"""Stands in a table for a block that its sequence needs no more (attention_window.py). Only the first ones may."""

_ANY_BLOCK = 0
"""What the executor is told in a hole's place: it reads no such entry."""


class BlockTable:
    """Position p of the sequence lives in block `block_ids[p // block_size]`, at offset `p % block_size`.

    row: of the executor's tables, where it keeps its copy; no other table has it. changed_from: the entry from which on
    that copy is out of date: plans carry changes only. is_told: whether any plan has told of the table. first: of the
    entries that are no holes.
    """

    __slots__ = ("block_ids", "changed_from", "first", "is_told", "row")

    def __init__(self, row: int, block_ids: list[int]) -> None:
        self.row = row
        self.block_ids = block_ids
        self.changed_from = 0
        self.is_told = False
        self.first = num_holes(block_ids)

    @property
    def held(self) -> list[int]:
        """The blocks, in order, without holes."""
        return self.block_ids[self.first :] if self.first else self.block_ids

    def append(self, block_id: int) -> None:
        self.block_ids.append(block_id)

    def replace(self, index: int, block_id: int) -> None:
        """Entry `index` is now another block (copy-on-write)."""
        self.block_ids[index] = block_id
        self.changed_from = min(self.changed_from, index)

    def adopt(self, block_ids: list[int], start: int) -> None:
        """Replace the entries from `start` on by `block_ids`, of another table."""
        self.block_ids[start:] = block_ids
        self.first = num_holes(self.block_ids)
        self.changed_from = min(self.changed_from, start)

    def drop_before(self, index: int) -> list[int]:
        """The entries before `index` are holes from now on; returns the blocks that they were."""
        index = min(index, len(self.block_ids))
        if index <= self.first:
            return []
        dropped = self.block_ids[self.first : index]
        self.block_ids[self.first : index] = [HOLE] * len(dropped)
        self.first = index
        return dropped

    def take_changes(self) -> tuple[int, tuple[int, ...]]:
        """(start, ids): entries from `start` on, as they now are; from here on they count as known."""
        self.is_told = True
        start, self.changed_from = self.changed_from, len(self.block_ids)
        if start == self.changed_from:
            return start, ()
        if start < self.first:
            return start, (*[_ANY_BLOCK] * (self.first - start), *self.block_ids[self.first :])
        return start, tuple(self.block_ids[start:])


def num_holes(block_ids: Sequence[int]) -> int:
    """That a table's entries begin with."""
    if not block_ids or block_ids[0] != HOLE:
        return 0
    return next((index for index, block_id in enumerate(block_ids) if block_id != HOLE), len(block_ids))
