"""One sequence's map from logical to physical blocks (PagedAttention, section 4.2).

With block size 1 it is a row of TokenAttention's table (LightLLM): position -> slot.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.core.layer_groups import ALL_SEE_ALL, TableGroups

HOLE = -1
"""In place of a block that the sequence no longer needs (attention_window.py). Only windowed groups have holes, and
only in the table's first units."""

_ANY_BLOCK = 0
"""What the executor gets in place of a hole. It never reads such an entry."""


class BlockTable:
    """Keys and values of group g at position p are in block `block_ids[p // block_size * groups.size + g]`, at offset
    `p % block_size`. A unit is `groups.size` entries; with one group, a single entry.

    row: where the executor keeps its copy of the table; unique among tables. changed_from: first entry that differs
    from the executor's copy, since plans carry changes only. is_told: whether any plan has carried the table. first:
    the first unit without holes.
    """

    __slots__ = ("block_ids", "changed_from", "first", "groups", "is_told", "row")

    def __init__(self, row: int, block_ids: list[int], groups: TableGroups = ALL_SEE_ALL) -> None:
        self.row = row
        self.block_ids = block_ids
        self.groups = groups
        self.changed_from = 0
        self.is_told = False
        self.first = num_left_behind(block_ids, groups)

    @property
    def held(self) -> list[int]:
        """The blocks in order, without holes."""
        return without_holes(self.block_ids) if self.first else self.block_ids

    @property
    def num_held(self) -> int:
        return len(self.block_ids) - self.first * self.groups.num_windowed

    def append(self, block_id: int) -> None:
        self.block_ids.append(block_id)

    def replace(self, index: int, block_id: int) -> None:
        """Set entry `index` to another block (copy-on-write)."""
        self.block_ids[index] = block_id
        self.changed_from = min(self.changed_from, index)

    def adopt(self, block_ids: list[int], start: int) -> None:
        """Replace the entries from `start` on by `block_ids`, which come from another table."""
        self.block_ids[start:] = block_ids
        self.first = num_left_behind(self.block_ids, self.groups)
        self.changed_from = min(self.changed_from, start)

    def drop_before(self, unit: int) -> list[int]:
        """Turn the windowed entries of all units before `unit` into holes. Returns the blocks that were there."""
        num_full, size = self.groups.num_full, self.groups.size
        units = range(self.first, min(unit, len(self.block_ids) // size))
        if not units:
            return []
        places = [each * size + group for each in units for group in range(num_full, size)]
        dropped = [self.block_ids[place] for place in places]
        for place in places:
            self.block_ids[place] = HOLE
        self.first = units.stop
        return dropped

    def take_changes(self) -> tuple[int, tuple[int, ...]]:
        """(start, ids): the entries from `start` on. They count as known to the executor from now on."""
        self.is_told = True
        start, self.changed_from = self.changed_from, len(self.block_ids)
        if start == self.changed_from:
            return start, ()
        if self.first and start < self.first * self.groups.size:
            return start, tuple(_ANY_BLOCK if block_id == HOLE else block_id for block_id in self.block_ids[start:])
        return start, tuple(self.block_ids[start:])


def num_left_behind(block_ids: Sequence[int], groups: TableGroups) -> int:
    """Number of leading units with holes."""
    first = groups.num_full
    if not groups.num_windowed or len(block_ids) <= first or block_ids[first] != HOLE:
        return 0
    of_one_group = block_ids[first :: groups.size]
    return next((unit for unit, block_id in enumerate(of_one_group) if block_id != HOLE), len(of_one_group))


def without_holes(block_ids: Sequence[int]) -> list[int]:
    return [block_id for block_id in block_ids if block_id != HOLE]
