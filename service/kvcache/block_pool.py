"""The physical blocks: a free list and a reference count each (PagedAttention, section 4.4)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice


class BlockPool:
    """Blocks 0 .. num_blocks - 1. The free list is the eviction order: freed last, taken last.

    A free block keeps what it holds until it is allocated, so that the prefix cache may bring it back by `share`.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self._free = OrderedDict.fromkeys(range(num_blocks))
        self._reference_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that no table holds; the prefix cache may know what is in them."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def reference_count(self, block_id: int) -> int:
        """How many block tables, or adapters, hold the block; 0 means that it is free."""
        return self._reference_counts[block_id]

    def is_used(self) -> list[bool]:
        """Of each block, whether anybody holds it."""
        return [count > 0 for count in self._reference_counts]

    def check_counts(self, held: Mapping[int, int]) -> None:
        """Raise AssertionError unless each block has as many holders as `held` says: where it is not named, none."""
        counted = {block_id: count for block_id, count in enumerate(self._reference_counts) if count}
        wrong = sorted({block_id for block_id, _ in counted.items() ^ held.items()})
        assert not wrong, f"count of blocks {wrong}"
        assert self.num_used == len(held), "free + used = total"

    def allocate(self) -> int:
        """Take a free block with count 1. The caller has checked `num_free`."""
        block_id, _ = self._free.popitem(last=False)
        self._reference_counts[block_id] = 1
        return block_id

    def allocate_many(self, count: int) -> list[int]:
        """`count` blocks at once, in the order of `allocate`."""
        free, counts = self._free, self._reference_counts
        block_ids = list(islice(free, count))
        for block_id in block_ids:
            del free[block_id]
            counts[block_id] = 1
        return block_ids

    def share(self, block_id: int) -> None:
        """Count one more table that holds the block, which may have been free."""
        if self._reference_counts[block_id] == 0:
            del self._free[block_id]
        self._reference_counts[block_id] += 1

    def share_many(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self.share(block_id)

    def move(self, source: int, destination: int) -> None:
        """Who holds `source` holds `destination` from now on, which was the caller's alone; and the caller `source`."""
        counts = self._reference_counts
        assert counts[source] > 0 and counts[destination] == 1
        counts[source], counts[destination] = counts[destination], counts[source]

    def release_many(self, block_ids: Iterable[int]) -> None:
        """`release` each of them. Cached blocks that become free are evicted in this order, too."""
        free, counts = self._free, self._reference_counts
        for block_id in block_ids:
            count = counts[block_id] = counts[block_id] - 1
            assert count >= 0, f"block {block_id} was freed twice"
            if count == 0:
                free[block_id] = None

    def release_empty(self, block_ids: Iterable[int]) -> None:
        """`release` blocks of one holder in which nobody will look for anything: they are the next to be taken."""
        for block_id in block_ids:
            self.release(block_id)
            self._free.move_to_end(block_id, last=False)

    def release(self, block_id: int) -> None:
        """Count one table fewer that holds the block; at zero it becomes free."""
        self.release_many((block_id,))
