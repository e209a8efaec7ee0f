"""The blocks in which the prefix cache may find something, until they are taken for something else."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from service.core.layer_groups import TableGroups
from service.kvcache.block_table import HOLE
from service.kvcache.kv_events import KvEvents


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
    """Knows nothing of reference counts: a known block may be used or free. Events tell of the groups that see
    everything, where there are such.

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
