"""Block tables of all sequences over one pool: allocate, append, fork, free (PagedAttention, sections 4.3-4.4)."""

from __future__ import annotations

from enum import Enum, auto

from service.core.iteration_plan import BlockCopy
from service.core.sequence import Sequence
from service.kvcache.block_pool import BlockPool
from service.kvcache.block_table import BlockTable
from service.kvcache.prefix_cache import PrefixCache


class Fit(Enum):
    """Does it fit? Now, once others have given blocks back, or in no circumstances."""

    OK = auto()
    LATER = auto()
    NEVER = auto()


class BlockManager:
    """Blocks are taken on demand; a sequence wastes less than one block. Sequences are known by id."""

    def __init__(self, num_blocks: int, block_size: int, prefix_cache: PrefixCache) -> None:
        assert block_size > 0
        self.block_size = block_size
        self._prefix_cache = prefix_cache
        self.pool = BlockPool(num_blocks)
        self._tables: dict[int, BlockTable] = {}

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def fit(self, num_blocks: int, keep_free: int = 0) -> Fit:
        """Whether `num_blocks` can be taken now and leave `keep_free` blocks free."""
        if num_blocks > self.pool.num_blocks:
            return Fit.NEVER
        return Fit.OK if num_blocks + keep_free <= self.pool.num_free else Fit.LATER

    def table(self, sequence_id: int) -> BlockTable:
        return self._tables[sequence_id]

    def holds(self, sequence_id: int) -> bool:
        return sequence_id in self._tables

    def is_shared(self, sequence_id: int, position: int) -> bool:
        """Whether the block of `position` is there and another table holds it too."""
        block_ids = self._tables[sequence_id].block_ids
        index = position // self.block_size
        return index < len(block_ids) and self.pool.reference_count(block_ids[index]) > 1

    def match_prefix(self, sequence: Sequence, salt: str) -> list[int]:
        """Blocks that hold the sequence's beginning already; they may be free, and go if others allocate first."""
        return self._prefix_cache.match(sequence, salt)

    def num_free_among(self, block_ids: list[int]) -> int:
        return sum(self.pool.reference_count(block_id) == 0 for block_id in block_ids)

    def allocate(self, sequence_id: int, num_tokens: int, prefix: list[int]) -> None:
        """A table for `num_tokens` tokens: the blocks of `prefix`, then new ones. The caller has checked `fit`."""
        assert sequence_id not in self._tables
        for block_id in prefix:
            self.pool.share(block_id)
        new = [self._take_block() for _ in range(self.num_blocks_for(num_tokens) - len(prefix))]
        self._tables[sequence_id] = BlockTable(prefix + new)

    def cache_prefix(self, sequence: Sequence, salt: str) -> None:
        """Let others find the sequence's computed full blocks."""
        if sequence.num_computed_tokens // self.block_size > sequence.num_cached_blocks:
            self._prefix_cache.insert(sequence, salt, self._tables[sequence.sequence_id].block_ids)

    def num_blocks_to_append(self, sequence_id: int, num_tokens: int, write_from: int) -> int:
        """Blocks that `append` would take with the same arguments."""
        block_ids = self._tables[sequence_id].block_ids
        growth = self.num_blocks_for(num_tokens) - len(block_ids)
        return max(growth, 0) + self.is_shared(sequence_id, write_from)

    def append(self, sequence_id: int, num_tokens: int, write_from: int) -> list[BlockCopy]:
        """Make room up to `num_tokens` tokens, of which those from position `write_from` on will be written.

        A shared block that would be written is replaced by a copy of its own; the returned copies must be
        carried out before the write. Only the first written block can be shared: the ones after it are new.
        """
        table = self._tables[sequence_id]
        copies: list[BlockCopy] = []
        if self.is_shared(sequence_id, write_from):
            index = write_from // self.block_size
            source = table.block_ids[index]
            destination = self._take_block()
            self.pool.release(source)
            table.replace(index, destination)
            copies.append(BlockCopy(source, destination))
        while len(table.block_ids) * self.block_size < num_tokens:
            table.append(self._take_block())
        return copies

    def fork(self, parent_id: int, child_id: int, num_tokens: int) -> None:
        """`child_id` shares the parent's blocks that hold its first `num_tokens` tokens."""
        assert child_id not in self._tables
        shared = self._tables[parent_id].block_ids[: self.num_blocks_for(num_tokens)]
        for block_id in shared:
            self.pool.share(block_id)
        self._tables[child_id] = BlockTable(list(shared))

    def free(self, sequence_id: int) -> None:
        """Give the sequence's blocks back. Last blocks first: a shared beginning outlives them."""
        for block_id in reversed(self._tables.pop(sequence_id).block_ids):
            self.pool.release(block_id)

    def check_invariants(self) -> None:
        """Raise AssertionError unless counts equal holders and every block is either used or free, once."""
        held: dict[int, int] = {}
        for table in self._tables.values():
            assert len(set(table.block_ids)) == len(table.block_ids), "a table holds a block once"
            for block_id in table.block_ids:
                held[block_id] = held.get(block_id, 0) + 1
        for block_id in range(self.pool.num_blocks):
            assert self.pool.reference_count(block_id) == held.get(block_id, 0), f"count of block {block_id}"
        assert self.pool.num_used == len(held), "free + used = total"

    def _take_block(self) -> int:
        block_id = self.pool.allocate()
        self._prefix_cache.forget(block_id)
        return block_id
