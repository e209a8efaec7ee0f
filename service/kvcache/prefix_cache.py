"""Automatic prefix cache: full blocks found again by what they hold (PagedAttention, section 4.4, shared prefix).

A block's digest is sha256 over its parent's digest and its own token ids; the first parent is the salt's digest. So
equal digests mean equal prefixes under the same salt, and tenants with different salts never share. Collisions are
not believed in but guarded against: the token ids are compared on a hit.

A prompt's blocks are offered as they are computed, an answer's once it has ended or is preempted.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple, Protocol

from service.core.sequence import Sequence
from service.kvcache.block_table import HOLE
from service.kvcache.kv_events import KvEvents, NoKvEvents


class PrefixCache(Protocol):
    """Which blocks hold which prefix. Knows nothing of reference counts: a known block may be used or free.

    tokens_per_entry: tokens in an entry; `insert` is worth calling once as many more are computed.
    """

    tokens_per_entry: int

    def match(self, sequence: Sequence, salt: str) -> list[int]:
        """Known blocks that hold the sequence's beginning, in order, at least one token short of its end. Holes in
        place of those that nothing behind them sees."""
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

    def forget(self, block_ids: Iterable[int]) -> None:
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


class ChainedPrefixCache:
    """The real one. An entry is one block, or `blocks_per_entry` consecutive ones where blocks are small, because
    keeping and finding a prefix costs time per entry. window: tokens that a query sees, if no layer sees more; of a
    prefix its last ones are enough then."""

    def __init__(
        self,
        block_size: int,
        blocks_per_entry: int = 1,
        events: KvEvents | None = None,
        window: int | None = None,
    ) -> None:
        self._blocks_per_entry = blocks_per_entry
        self.tokens_per_entry = block_size * blocks_per_entry
        self._window = window
        self._events = events or NoKvEvents()
        self._entries: dict[bytes, _Entry] = {}
        self._entry_of: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, sequence: Sequence, salt: str) -> list[int]:
        if self._window is not None:
            return self._match_last(sequence, salt, self._window)
        found: list[int] = []
        for index in range((sequence.num_tokens - 1) // self.tokens_per_entry):
            tokens = self._tokens(sequence, index, index + 1)
            entry = self._entries.get(self._digest(sequence, salt, index, tokens))
            if entry is None or entry.tokens != tokens:
                break
            found += entry.block_ids
        return found

    def insert(self, sequence: Sequence, salt: str, block_ids: list[int], num_tokens: int) -> None:
        count = self._blocks_per_entry
        first, end = sequence.num_cached_blocks // count, num_tokens // self.tokens_per_entry
        if first >= end:
            return
        first = min(first, len(sequence.block_digests))
        tokens = self._tokens(sequence, first, end)
        size = len(tokens) // (end - first)
        entries, entry_of = self._entries, self._entry_of
        for index in range(first, end):
            start = (index - first) * size
            held = tokens[start : start + size]
            digest = self._digest(sequence, salt, index, held)
            if digest in entries:
                continue
            blocks = tuple(block_ids[index * count : (index + 1) * count])
            if blocks[0] != HOLE and entry_of.keys().isdisjoint(blocks):
                entry = entries[digest] = _Entry(digest, held, blocks)
                for block_id in blocks:
                    entry_of[block_id] = entry
                parent = sequence.block_digests[index - 1] if index else None
                self._events.stored(digest, parent, held, salt)
        sequence.num_cached_blocks = end * count

    def _match_last(self, sequence: Sequence, salt: str, window: int) -> list[int]:
        """The longest beginning of which the entries are known that the token behind it sees."""
        num_seen = max(1, -(-(window - 1) // self.tokens_per_entry))
        digests, num_entries = sequence.block_digests, (sequence.num_tokens - 1) // self.tokens_per_entry
        for index in range(len(digests), num_entries):
            self._digest(sequence, salt, index, self._tokens(sequence, index, index + 1))
        num_known = 0  # side by side, from `index` on
        for index in reversed(range(num_entries)):
            entry = self._entries.get(digests[index])
            is_known = entry is not None and entry.tokens == self._tokens(sequence, index, index + 1)
            num_known = num_known + 1 if is_known else 0
            if num_known and num_known == min(num_seen, index + num_known):
                found = (self._entries[digest].block_ids for digest in digests[index : index + num_known])
                block_ids = [HOLE] * (index * self._blocks_per_entry) + [b for blocks in found for b in blocks]
                end = (index + num_known) * self.tokens_per_entry
                num_unseen = max(0, end + 1 - window) * self._blocks_per_entry // self.tokens_per_entry
                block_ids[:num_unseen] = [HOLE] * num_unseen
                return block_ids
        return []

    def known_blocks(self) -> Collection[int]:
        return self._entry_of.keys()

    def move(self, moved: Mapping[int, int]) -> None:
        touched = {entry.digest: entry for block_id in moved if (entry := self._entry_of.pop(block_id, None))}
        for digest, entry in touched.items():
            there = entry._replace(block_ids=tuple(moved.get(block_id, block_id) for block_id in entry.block_ids))
            self._entries[digest] = there
            self._entry_of.update(dict.fromkeys(there.block_ids, there))

    def forget(self, block_ids: Iterable[int]) -> None:
        entry_of = self._entry_of
        if not entry_of:
            return
        for block_id in block_ids:
            entry = entry_of.get(block_id)
            if entry is not None:
                del self._entries[entry.digest]
                self._events.removed(entry.digest)
                for held_id in entry.block_ids:
                    del entry_of[held_id]

    def forget_all(self) -> None:
        self._entries.clear()
        self._entry_of.clear()
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

    def forget(self, block_ids: Iterable[int]) -> None:
        pass

    def forget_all(self) -> None:
        pass
