"""The entries of the prefix cache: found by the digest of a prefix, forgotten by a block that is overwritten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from service.kvcache.block_table import HOLE


class Entry(NamedTuple):
    """Consecutive blocks of a cached prefix, and the ids of the tokens in them, as bytes."""

    digest: bytes
    tokens: bytes
    block_ids: tuple[int, ...]


class Entries:
    """Cached entries of one kind of layers (full attention or windowed). groups: their indices in a table's unit."""

    def __init__(self, groups: range) -> None:
        self.groups = groups
        self.entries: dict[bytes, Entry] = {}
        self.entry_of: dict[int, Entry] = {}

    def find(self, digest: bytes, tokens: bytes) -> Entry | None:
        entry = self.entries.get(digest)
        return entry if entry is not None and entry.tokens == tokens else None

    def insert(self, digest: bytes, tokens: bytes, units: list[int], size: int) -> bool:
        """Add an entry. False if the digest is known, a block of it is in another entry, or its first block is a hole.
        units: entries of a block table, `size` per unit."""
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
        """Remove the entry that contains the block. Returns its digest."""
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
