"""The physical KV blocks: who holds them, which are cached, and which is reused next.

Every block has a reference count; at 0 it is in the free list (PagedAttention, section 4.4). A free block keeps its
contents until it is allocated again, so the prefix cache (prefix_cache.py) can still find it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from service.core.layer_groups import TableGroups
from service.kvcache.block_table import BlockTable
from service.kvcache.borrower import Borrower
from service.kvcache.kv_events import KvEvents
from service.kvcache.prefix_entries import Entries


class BlockPool:
    """Blocks 0 .. num_blocks - 1. The free list is in eviction order: the block freed first is allocated first. `share`
    may take a block back out of the free list.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self._free = OrderedDict.fromkeys(range(num_blocks))
        self._reference_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def reference_count(self, block_id: int) -> int:
        """How many block tables or adapters hold the block. 0: it is free."""
        return self._reference_counts[block_id]

    def is_used(self) -> list[bool]:
        """For each block, whether anybody holds it."""
        return [count > 0 for count in self._reference_counts]

    def allocate(self) -> int:
        """Take a free block with count 1. The caller has checked `num_free`."""
        block_id, _ = self._free.popitem(last=False)
        self._reference_counts[block_id] = 1
        return block_id

    def allocate_many(self, count: int) -> list[int]:
        """Take `count` free blocks, in the same order as `allocate` would."""
        free, counts = self._free, self._reference_counts
        block_ids = list(islice(free, count))
        for block_id in block_ids:
            del free[block_id]
            counts[block_id] = 1
        return block_ids

    def share(self, block_id: int) -> None:
        """Add a holder to the block, which may be free."""
        if self._reference_counts[block_id] == 0:
            del self._free[block_id]
        self._reference_counts[block_id] += 1

    def share_many(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self.share(block_id)

    def move(self, source: int, destination: int) -> None:
        """Swap the holders of two blocks: all holders of `source` hold `destination` from now on, and the caller, who
        alone held `destination`, holds `source`."""
        counts = self._reference_counts
        assert counts[source] > 0 and counts[destination] == 1
        counts[source], counts[destination] = counts[destination], counts[source]

    def release_many(self, block_ids: Iterable[int]) -> None:
        """`release` each of them. The order is also the order in which blocks that become free are evicted."""
        free, counts = self._free, self._reference_counts
        for block_id in block_ids:
            count = counts[block_id] = counts[block_id] - 1
            assert count >= 0, f"block {block_id} was freed twice"
            if count == 0:
                free[block_id] = None

    def release_empty(self, block_ids: Iterable[int]) -> None:
        """`release` blocks whose contents are useless and whose only holder is the caller. They are reused first."""
        for block_id in block_ids:
            self.release(block_id)
            self._free.move_to_end(block_id, last=False)

    def release(self, block_id: int) -> None:
        """Remove a holder from the block. At zero the block becomes free."""
        self.release_many((block_id,))


class KnownBlocks:
    """Blocks in which the prefix cache can find something, held or free, until they are allocated for something else.
    KV events report the full-attention groups, or the windowed ones if there are no others.

    full, windowed: entries of full-attention layers and of sliding-window layers. kinds: those of the two that exist.
    """

    def __init__(self, groups: TableGroups, events: KvEvents) -> None:
        self._events = events
        self.full = Entries(range(groups.num_full))
        self.windowed = Entries(range(groups.num_full, groups.size))
        self.kinds = [kind for kind in (self.full, self.windowed) if kind.groups]

    def __len__(self) -> int:
        """Number of entries that can be found."""
        return len(self.kinds[0].entries)

    def block_ids(self) -> Collection[int]:
        """All blocks that belong to an entry."""
        first, *others = (kind.entry_of for kind in self.kinds)
        return first.keys() | others[0].keys() if others else first.keys()

    def move(self, moved: Mapping[int, int]) -> None:
        """Contents moved from each key to its value, which has no entry: entries name the new blocks from now on."""
        for kind in self.kinds:
            kind.move(moved)

    def forget(self, block_ids: Collection[int]) -> None:
        """The blocks will be overwritten: remove their entries."""
        for kind in self.kinds:
            if not kind.entry_of:
                continue
            for block_id in block_ids:
                if block_id in kind.entry_of:
                    digest = kind.forget(block_id)
                    if kind is self.kinds[0]:
                        self._events.removed(digest)

    def forget_all(self) -> None:
        """Remove all entries. Holders keep their blocks."""
        for kind in self.kinds:
            kind.entries.clear()
            kind.entry_of.clear()
        self._events.cleared()


class BlockSupply:
    """Allocates new blocks. If too few are free, borrowers give theirs back first, in the given order. When a block is
    allocated, the prefix cache forgets what was in it."""

    def __init__(self, pool: BlockPool, known: KnownBlocks, borrowers: Sequence[Borrower]) -> None:
        self._pool = pool
        self._known = known
        self._borrowers = borrowers

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free ones, and those that can be reclaimed from borrowers."""
        return self._pool.num_free + sum(borrower.num_idle_blocks for borrower in self._borrowers)

    def append_each(self, tables: Sequence[BlockTable]) -> list[int]:
        """Append a new block to each table; a table that occurs several times gets several. Returns the blocks in the
        order of `tables`. The caller must report them in plans (`changed_from` is not touched).

        The caller has checked `num_available`. No block that these sequences write next may be shared.
        """
        block_ids = self.take(len(tables))
        for table, block_id in zip(tables, block_ids, strict=True):
            table.block_ids.append(block_id)  # with block size 1, for every sequence in every iteration
        return block_ids

    def take(self, count: int) -> list[int]:
        """`count` blocks with reference count 1. The caller has checked `num_available`."""
        if count > self._pool.num_free:
            for borrower in self._borrowers:
                borrower.free_blocks(count)
        block_ids = self._pool.allocate_many(count)
        self._known.forget(block_ids)
        return block_ids

    def take_one(self) -> int:
        """One block, as `take`."""
        return self.take(1)[0]
