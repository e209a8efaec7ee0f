"""Automatic prefix cache: finds full blocks by their contents (PagedAttention, section 4.4, shared prefix).

A block's digest is the sha256 of its parent's digest and its own token ids; the first parent is the digest of the salt.
So equal digests mean equal prefixes under the same salt, and tenants with different salts never share blocks. As a
guard against collisions, token ids are compared on a hit.

Prompt blocks are inserted as they are computed, those of an answer when it ends or is preempted.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from hashlib import sha256
from typing import Protocol

from service.core.layer_groups import ALL_SEE_ALL, TableGroups, one_group
from service.core.sequence import Sequence
from service.kvcache.block_pool import KnownBlocks
from service.kvcache.block_table import HOLE
from service.kvcache.kv_events import KvEvents, NoKvEvents
from service.kvcache.prefix_entries import Entry


class PrefixCache(Protocol):
    """Which blocks hold which prefix.

    tokens_per_entry: `insert` is worth calling once so many more tokens are computed. known: the inserted entries.
    """

    tokens_per_entry: int
    known: KnownBlocks

    def match(self, sequence: Sequence, salt: str) -> list[int]:
        """Cached blocks for the sequence's first tokens, as the beginning of a block table. They end at least one token
        before the sequence does. Windowed entries that no later token sees are holes."""
        ...

    def insert(self, sequence: Sequence, salt: str, block_ids: list[int], num_tokens: int) -> None:
        """Make the full blocks of the sequence's first `num_tokens` tokens findable. Holes, and prefixes that are known
        already, are skipped."""
        ...


class ChainedPrefixCache:
    """The real one. An entry is one unit of a block table, or `blocks_per_entry` consecutive ones if blocks are small,
    since time is spent per entry.

    window: the window of those layer groups that have one (`groups`). Of these, only the last entries of a prefix are
    needed. They are cached independently of the full-attention groups, since their blocks are freed earlier. KV events
    report the full-attention groups, or the windowed ones if there are no others.
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
        self.known = KnownBlocks(self._groups, self._events)

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
            is_new = [kind.insert(digest, held, units, size) for kind in self.known.kinds]
            if is_new[0]:
                parent = sequence.block_digests[index - 1] if index else None
                self._events.stored(digest, parent, held, salt)
        sequence.num_cached_blocks = end * count

    def _leading(self, sequence: Sequence, salt: str, num_entries: int) -> list[Entry]:
        """Entries of the full-attention groups, from the first one to the last in unbroken sequence."""
        found = list[Entry]()
        for index in range(num_entries):
            tokens = self._tokens(sequence, index, index + 1)
            entry = self.known.full.find(self._digest(sequence, salt, index, tokens), tokens)
            if entry is None:
                break
            found.append(entry)
        return found

    def _last_seen(self, sequence: Sequence, salt: str, num_entries: int, window: int) -> dict[int, Entry]:
        """For the longest prefix, of at most `num_entries` entries, whose end can be continued: the windowed entries
        that its next token sees, by index, last one first."""
        num_seen = max(1, -(-(window - 1) // self.tokens_per_entry))
        digests = sequence.block_digests
        for index in range(len(digests), num_entries):
            self._digest(sequence, salt, index, self._tokens(sequence, index, index + 1))
        seen = dict[int, Entry]()
        for index in reversed(range(num_entries)):
            entry = self.known.windowed.find(digests[index], self._tokens(sequence, index, index + 1))
            if entry is None:
                seen.clear()
                continue
            seen[index] = entry
            if len(seen) == num_seen:
                break
        return seen

    def _table(self, full: list[Entry] | None, seen: Mapping[int, Entry], window: int) -> list[int]:
        """Block table with all entries of `full` up to the end of `seen`, and the units of `seen` that the next token
        sees."""
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

    def _tokens(self, sequence: Sequence, first: int, end: int) -> bytes:
        """Token ids of entries first, ..., end - 1, as C ints."""
        size = self.tokens_per_entry
        return array("i", sequence.token_ids[first * size : end * size]).tobytes()

    def _digest(self, sequence: Sequence, salt: str, index: int, tokens: bytes) -> bytes:
        """Digest of the sequence's entry `index`, which holds `tokens`. Computed once, in order, and kept."""
        digests = sequence.block_digests
        if index < len(digests):
            return digests[index]
        digest = sha256((digests[-1] if digests else _first_parent(salt)) + tokens).digest()
        digests.append(digest)
        return digest


def _first_parent(salt: str) -> bytes:
    return sha256(salt.encode()).digest()


class NoPrefixCache:
    """Null object: finds nothing and keeps nothing."""

    tokens_per_entry = 2**63

    def __init__(self) -> None:
        self.known = KnownBlocks(ALL_SEE_ALL, NoKvEvents())

    def match(self, sequence: Sequence, salt: str) -> list[int]:
        return []

    def insert(self, sequence: Sequence, salt: str, block_ids: list[int], num_tokens: int) -> None:
        pass
