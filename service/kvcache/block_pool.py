"""The physical blocks: who holds them, what may be found in them, and what goes for a new one.

A block has a reference count, and stands in the free list if it is 0 (PagedAttention, section 4.4). What a free block
holds stays there until the block is taken, so that the prefix cache (prefix_cache.py) may find it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from service.core.layer_groups import TableGroups
from service.kvcache.block_table import HOLE, BlockTable
from service.kvcache.kv_events import KvEvents


class BlockPool:
    """Blocks 0 .. num_blocks - 1. The free list is the eviction order: freed last, taken last. A free block may be
    brought back by `share`.
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


class Entry(NamedTuple):
    """Consecutive blocks of a prefix, and the tokens that they hold, as bytes."""

    digest: bytes
    tokens: bytes
    block_ids: tuple[int, ...]


class Entries:
    """Of groups of layers that see alike: their blocks come and go together. groups: their places in a unit."""

    def __init__(self, groups: range) -> None:
        self.groups = groups
        self.entries: dict[bytes, Entry] = {}
        self.entry_of: dict[int, Entry] = {}

    def find(self, digest: bytes, tokens: bytes) -> Entry | None:
        entry = self.entries.get(digest)
        return entry if entry is not None and entry.tokens == tokens else None

    def insert(self, digest: bytes, tokens: bytes, units: list[int], size: int) -> bool:
        """Whether it is new, and no block of it known. units: of tables, with `size` entries each."""
        if digest in self.entries:
            return False
        blocks = tuple(units if size == 1 else (b for place, b in enumerate(units) if place % size in self.groups))
        if blocks[0] == HOLE or not self.entry_of.keys().isdisjoint(blocks):
            return False
        entry = self.entries[digest] = Entry(digest, tokens, blocks)
        for block_id in blocks:
            self.entry_of[block_id] = entry
        return True

    def forget(self, block_id: int) -> bytes:
        """The digest of the block's entry, which goes with it."""
        entry = self.entry_of[block_id]
        del self.entries[entry.digest]
        for held_id in entry.block_ids:
            del self.entry_of[held_id]
        return entry.digest

    def move(self, moved: Mapping[int, int]) -> None:
        touched = {entry.digest: entry for block_id in moved if (entry := self.entry_of.pop(block_id, None))}
        for digest, entry in touched.items():
            there = entry._replace(block_ids=tuple(moved.get(block_id, block_id) for block_id in entry.block_ids))
            self.entries[digest] = there
            self.entry_of.update(dict.fromkeys(there.block_ids, there))


class KnownBlocks:
    """The blocks in which the prefix cache may find something, used or free, until they are taken for something else.
    Events tell of the groups that see everything, where there are such.

    full, windowed: what layers that see everything have, and those that have a window. kinds: of these, those that
    there are.
    """

    def __init__(self, groups: TableGroups, events: KvEvents) -> None:
        self._events = events
        self.full = Entries(range(groups.num_full))
        self.windowed = Entries(range(groups.num_full, groups.size))
        self.kinds = [kind for kind in (self.full, self.windowed) if kind.groups]

    def __len__(self) -> int:
        """How many entries may be found."""
        return len(self.kinds[0].entries)

    def block_ids(self) -> Collection[int]:
        """Those in which something may be found."""
        first, *others = (kind.entry_of for kind in self.kinds)
        return first.keys() | others[0].keys() if others else first.keys()

    def move(self, moved: Mapping[int, int]) -> None:
        """What the first of each pair holds is in the second one from now on, of which nothing was known."""
        for kind in self.kinds:
            kind.move(moved)

    def forget(self, block_ids: Collection[int]) -> None:
        """The blocks will hold something else."""
        for kind in self.kinds:
            if not kind.entry_of:
                continue
            for block_id in block_ids:
                if block_id in kind.entry_of:
                    digest = kind.forget(block_id)
                    if kind is self.kinds[0]:
                        self._events.removed(digest)

    def forget_all(self) -> None:
        """Nothing that was offered so far is found any more; who holds blocks keeps them."""
        for kind in self.kinds:
            kind.entries.clear()
            kind.entry_of.clear()
        self._events.cleared()


class Borrower(Protocol):
    """Has blocks of the pool that are as good as free: whoever takes blocks may have them."""

    @property
    def num_idle_blocks(self) -> int:
        """How many of its blocks can be had."""
        ...

    def free_blocks(self, num_blocks: int) -> None:
        """Give some of them back, if so many blocks are not free yet: until they are, or there are no more."""
        ...


class BlockSupply:
    """Where new blocks come from. If there are too few free ones, the borrowers give theirs back, in this order. A
    prefix that was found in a block is forgotten when the block is taken."""

    def __init__(self, pool: BlockPool, known: KnownBlocks, borrowers: Sequence[Borrower]) -> None:
        self._pool = pool
        self._known = known
        self._borrowers = borrowers

    @property
    def num_available(self) -> int:
        """Blocks that can be taken now: free ones, and the borrowers'."""
        return self._pool.num_free + sum(borrower.num_idle_blocks for borrower in self._borrowers)

    def append_each(self, tables: Sequence[BlockTable]) -> list[int]:
        """One more block for each table, as often as it is there; returns the blocks, in the tables' order. What plans
        tell of them is the caller's.

        The caller has checked `num_available`. The tables' sequences share nothing that they write.
        """
        block_ids = self.take(len(tables))
        for table, block_id in zip(tables, block_ids, strict=True):
            table.block_ids.append(block_id)  # of blocks of one token all, each iteration
        return block_ids

    def take(self, count: int) -> list[int]:
        """Each held once, by the caller, who has checked `num_available`."""
        self._make_free(count)
        block_ids = self._pool.allocate_many(count)
        self._known.forget(block_ids)
        return block_ids

    def take_one(self) -> int:
        """As `take`."""
        self._make_free(1)
        block_id = self._pool.allocate()
        self._known.forget((block_id,))
        return block_id

    def _make_free(self, count: int) -> None:
        if count > self._pool.num_free:
            for borrower in self._borrowers:
                borrower.free_blocks(count)
