"""Automatic prefix cache: full blocks found again by what they hold (PagedAttention, section 4.4, shared prefix).

A block's digest is sha256 over its parent's digest and its own token ids; the first parent is the salt's digest. So
equal digests mean equal prefixes under the same salt, and tenants with different salts never share. Collisions are
not believed in but guarded against: the token ids are compared on a hit.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from service.core.sequence import Sequence


class PrefixCache(Protocol):
    """Which blocks hold which prefix. Knows nothing of reference counts: a known block may be used or free."""

    def match(self, sequence: Sequence, salt: str) -> list[int]:
        """Known blocks that hold the sequence's beginning, in order, at least one token short of its end."""
        ...

    def insert(self, sequence: Sequence, salt: str, block_ids: list[int], num_tokens: int) -> None:
        """Full blocks of its first `num_tokens` tokens may be found from now on; known ones are passed over."""
        ...

    def forget(self, block_id: int) -> None:
        """The block will hold something else."""
        ...


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    token_ids: tuple[int, ...]


class ChainedPrefixCache:
    """The real one."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._block_of: dict[bytes, int] = {}
        self._entry_of: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def match(self, sequence: Sequence, salt: str) -> list[int]:
        last = (sequence.num_tokens - 1) // self._block_size
        found: list[int] = []
        for index in range(last):
            block_id = self._block_of.get(self._digest(sequence, salt, index))
            if block_id is None or self._entry_of[block_id].token_ids != self._tokens(sequence, index):
                break
            found.append(block_id)
        return found

    def insert(self, sequence: Sequence, salt: str, block_ids: list[int], num_tokens: int) -> None:
        for index in range(sequence.num_cached_blocks, num_tokens // self._block_size):
            digest = self._digest(sequence, salt, index)
            if digest not in self._block_of and block_ids[index] not in self._entry_of:
                self._block_of[digest] = block_ids[index]
                self._entry_of[block_ids[index]] = _Entry(digest, self._tokens(sequence, index))
            sequence.num_cached_blocks = index + 1

    def forget(self, block_id: int) -> None:
        entry = self._entry_of.pop(block_id, None)
        if entry is not None:
            del self._block_of[entry.digest]

    def _tokens(self, sequence: Sequence, index: int) -> tuple[int, ...]:
        start = index * self._block_size
        return tuple(sequence.token_ids[start : start + self._block_size])

    def _digest(self, sequence: Sequence, salt: str, index: int) -> bytes:
        """Digest of the sequence's block `index`; each is computed once and kept with the sequence."""
        digests = sequence.block_digests
        while len(digests) <= index:
            parent = digests[-1] if digests else sha256(salt.encode()).digest()
            tokens = array("i", self._tokens(sequence, len(digests)))
            digests.append(sha256(parent + tokens.tobytes()).digest())
        return digests[index]


class NoPrefixCache:
    """Finds nothing and keeps nothing."""

    def match(self, sequence: Sequence, salt: str) -> list[int]:
        return []

    def insert(self, sequence: Sequence, salt: str, block_ids: list[int], num_tokens: int) -> None:
        pass

    def forget(self, block_id: int) -> None:
        pass
