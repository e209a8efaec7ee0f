"""Automatic prefix cache: full blocks found again by what they hold (PagedAttention, section 4.4, shared prefix).

A block's digest is sha256 over its parent's digest and its own token ids; the first parent is the salt's digest. So
equal digests mean equal prefixes under the same salt, and tenants with different salts never share. Collisions are
not believed in but guarded against: the token ids are compared on a hit.

A prompt's blocks are offered as they are computed, an answer's once it has ended or is preempted.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import NamedTuple, Protocol

from service.core.layer_groups import TableGroups, one_group
from service.core.sequence import Sequence
from service.kvcache.block_table import HOLE
from service.kvcache.kv_events import KvEvents, NoKvEvents


class PrefixCache(Protocol):
    """Which blocks hold which prefix. Knows nothing of reference counts: a known block may be used or free.

    tokens_per_entry: tokens in an entry; `insert` is worth calling once as many more are computed.
    """

    tokens_per_entry: int

    def match(self, sequence: Sequence, salt: str) -> list[int]:
        """A table's first units: known blocks that hold the sequence's beginning, in order, at least one token short of
        its end. Holes in place of those that nothing behind them sees."""
        ...

    def insert(self, sequence: Sequence, salt: str, block_ids: list[int], num_tokens: int) -> None:
        """Full blocks of its first `num_tokens` tokens may be found from now on; known ones are passed over, and
        holes."""
        ...

    def known_blocks(self) -> Collection[int]:
        """Those in which something may be found."""
        ...

    def move(self, moved: Mapping[int, int]) -> None:
        """What the first of each pair holds is in the second one from now on, of which nothing was known."""
        ...

    def forget(self, block_ids: Collection[int]) -> None:
        """The blocks will hold something else."""
        ...

    def forget_all(self) -> None:
        """Nothing that was offered so far is found any more; who holds blocks keeps them."""
        ...


class _Entry(NamedTuple):
    """Consecutive blocks of a prefix, and the tokens that they hold, as bytes."""

    digest: bytes
    tokens: bytes
    block_ids: tuple[int, ...]


class _Entries:
    """Of groups of layers that see alike: their blocks come and go together. groups: their places in a unit."""

    def __init__(self, groups: range) -> None:
        self.groups = groups
        self.entries: dict[bytes, _Entry] = {}
        self.entry_of: dict[int, _Entry] = {}

    def find(self, digest: bytes, tokens: bytes) -> _Entry | None:
        entry = self.entries.get(digest)
        return entry if entry is not None and entry.tokens == tokens else None

    def insert(self, digest: bytes, tokens: bytes, units: list[int], size: int) -> bool:
        """Whether it is new, and no block of it known. units: of tables, with `size` entries each."""
        if digest in self.entries:
            return False
        blocks = tuple(units if size == 1 else (b for place, b in enumerate(units) if place % size in self.groups))
        if blocks[0] == HOLE or not self.entry_of.keys().isdisjoint(blocks):
            return False
        entry = self.entries[digest] = _Entry(digest, tokens, blocks)
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


class ChainedPrefixCache:
    """The real one. An entry is one unit of a table, or `blocks_per_entry` consecutive ones where blocks are small,
    because keeping and finding a prefix costs time per entry.

    window: tokens that a query sees in groups of layers that have one (`groups`); of a prefix's entries the last ones
    are enough then. What these groups keep is found and forgotten by itself: their blocks go sooner. Events tell of the
    groups that see everything, where there are such.
    """

    def __init__(
        self,
        block_size: int,
        blocks_per_entry: int = 1,
        events: KvEvents | None = None,
        window: int | None = None,
        groups: TableGroups | None = None,
    ) -> None:
        self._blocks_per_entry = blocks_per_entry
        self.tokens_per_entry = block_size * blocks_per_entry
        self._window = window
        self._events = events or NoKvEvents()
        self._groups = groups or one_group(window)
        num_full, size = self._groups.num_full, self._groups.size
        self._full = _Entries(range(num_full))
        self._windowed = _Entries(range(num_full, size))
        self._kinds = [kind for kind in (self._full, self._windowed) if kind.groups]

    def __len__(self) -> int:
        return len(self._kinds[0].entries)

    def match(self, sequence: Sequence, salt: str) -> list[int]:
        num_entries = (sequence.num_tokens - 1) // self.tokens_per_entry
        full = self._leading(sequence, salt, num_entries) if self._groups.num_full else None
        if self._window is None:
            return [] if full is None else [block_id for entry in full for block_id in entry.block_ids]
        seen = self._last_seen(sequence, salt, num_entries if full is None else len(full), self._window)
        return self._table(full, seen, self._window)

    def insert(self, sequence: Sequence, salt: str, block_ids: list[int], num_tokens: int) -> None:
        count, size = self._blocks_per_entry, self._groups.size
        first, end = sequence.num_cached_blocks // count, num_tokens // self.tokens_per_entry
        if first >= end:
            return
        first = min(first, len(sequence.block_digests))
        tokens = self._tokens(sequence, first, end)
        num_bytes = len(tokens) // (end - first)
        for index in range(first, end):
            start = (index - first) * num_bytes
            held = tokens[start : start + num_bytes]
            digest = self._digest(sequence, salt, index, held)
            units = block_ids[index * count * size : (index + 1) * count * size]
            is_new = [kind.insert(digest, held, units, size) for kind in self._kinds]
            if is_new[0]:
                parent = sequence.block_digests[index - 1] if index else None
                self._events.stored(digest, parent, held, salt)
        sequence.num_cached_blocks = end * count

    def _leading(self, sequence: Sequence, salt: str, num_entries: int) -> list[_Entry]:
        """Entries of the groups that see everything, from the first one on, as far as they are known."""
        found = list[_Entry]()
        for index in range(num_entries):
            tokens = self._tokens(sequence, index, index + 1)
            entry = self._full.find(self._digest(sequence, salt, index, tokens), tokens)
            if entry is None:
                break
            found.append(entry)
        return found

    def _last_seen(self, sequence: Sequence, salt: str, num_entries: int, window: int) -> dict[int, _Entry]:
        """Of the longest beginning, of at most so many entries, of which a window's groups have what the token behind
        it sees: these entries, by their index, the last one first."""
        num_seen = max(1, -(-(window - 1) // self.tokens_per_entry))
        digests = sequence.block_digests
        for index in range(len(digests), num_entries):
            self._digest(sequence, salt, index, self._tokens(sequence, index, index + 1))
        seen = dict[int, _Entry]()
        for index in reversed(range(num_entries)):
            entry = self._windowed.find(digests[index], self._tokens(sequence, index, index + 1))
            if entry is None:
                seen.clear()
                continue
            seen[index] = entry
            if len(seen) == num_seen:
                break
        return seen

    def _table(self, full: list[_Entry] | None, seen: Mapping[int, _Entry], window: int) -> list[int]:
        """That has the entries of `full` as far as `seen` goes, and of `seen` the units that the next token sees."""
        num_full, num_windowed = self._groups
        num_units = (max(seen, default=-1) + 1) * self._blocks_per_entry
        block_size = self.tokens_per_entry // self._blocks_per_entry
        num_left_behind = max(0, num_units * block_size + 1 - window) // block_size
        table = list[int]()
        for unit in range(num_units):
            index, nth = divmod(unit, self._blocks_per_entry)
            if full is not None:
                table += full[index].block_ids[nth * num_full : (nth + 1) * num_full]
            if unit < num_left_behind:
                table += [HOLE] * num_windowed
            else:
                table += seen[index].block_ids[nth * num_windowed : (nth + 1) * num_windowed]
        return table

    def known_blocks(self) -> Collection[int]:
        first, *others = (kind.entry_of for kind in self._kinds)
        return first.keys() | others[0].keys() if others else first.keys()

    def move(self, moved: Mapping[int, int]) -> None:
        for kind in self._kinds:
            kind.move(moved)

    def forget(self, block_ids: Collection[int]) -> None:
        for kind in self._kinds:
            if not kind.entry_of:
                continue
            for block_id in block_ids:
                if block_id in kind.entry_of:
                    digest = kind.forget(block_id)
                    if kind is self._kinds[0]:
                        self._events.removed(digest)

    def forget_all(self) -> None:
        for kind in self._kinds:
            kind.entries.clear()
            kind.entry_of.clear()
        self._events.cleared()

    def _tokens(self, sequence: Sequence, first: int, end: int) -> bytes:
        """The token ids of the entries from `first` to `end`, as bytes."""
        size = self.tokens_per_entry
        return array("i", sequence.token_ids[first * size : end * size]).tobytes()

    def _digest(self, sequence: Sequence, salt: str, index: int, tokens: bytes) -> bytes:
        """Digest of the sequence's entry `index`, which holds `tokens`; computed once, in order, and kept with it."""
        digests = sequence.block_digests
        if index < len(digests):
            return digests[index]
        digest = sha256((digests[-1] if digests else _first_parent(salt)) + tokens).digest()
        digests.append(digest)
        return digest


def _first_parent(salt: str) -> bytes:
    return sha256(salt.encode()).digest()


class NoPrefixCache:
    """Finds nothing and keeps nothing."""

    tokens_per_entry = 2**63

    def match(self, sequence: Sequence, salt: str) -> list[int]:
        return []

    def insert(self, sequence: Sequence, salt: str, block_ids: list[int], num_tokens: int) -> None:
        pass

    def known_blocks(self) -> Collection[int]:
        return ()

    def move(self, moved: Mapping[int, int]) -> None:
        pass

    def forget(self, block_ids: Collection[int]) -> None:
        pass

    def forget_all(self) -> None:
        pass
