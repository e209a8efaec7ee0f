"""One sequence's map from logical to physical blocks (PagedAttention, section 4.2).

With blocks of one token it is a row of TokenAttention's table (LightLLM): position -> slot.
"""

from __future__ import annotations


class BlockTable:
    """Position p of the sequence lives in block `block_ids[p // block_size]`, at offset `p % block_size`.

    row: of the executor's tables, where it keeps its copy; no other table has it. changed_from: the entry from which on
    that copy is out of date: plans carry changes only. is_told: whether any plan has told of the table.
    """

    __slots__ = ("block_ids", "changed_from", "is_told", "row")

    def __init__(self, row: int, block_ids: list[int]) -> None:
        self.row = row
        self.block_ids = block_ids
        self.changed_from = 0
        self.is_told = False

    def append(self, block_id: int) -> None:
        self.block_ids.append(block_id)

    def replace(self, index: int, block_id: int) -> None:
        """Entry `index` is now another block (copy-on-write)."""
        self.block_ids[index] = block_id
        self.changed_from = min(self.changed_from, index)

    def adopt(self, block_ids: list[int], start: int) -> None:
        """Replace the entries from `start` on by `block_ids`."""
        self.block_ids[start:] = block_ids
        self.changed_from = min(self.changed_from, start)

    def take_changes(self) -> tuple[int, tuple[int, ...]]:
        """(start, ids): entries from `start` on, as they now are; from here on they count as known."""
        self.is_told = True
        start, self.changed_from = self.changed_from, len(self.block_ids)
        if start == self.changed_from:
            return start, ()
        return start, tuple(self.block_ids[start:])
