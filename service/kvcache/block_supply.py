"""Where new blocks come from: what of the pool can be had, and what goes for it."""

from __future__ import annotations

from collections.abc import Sequence

from service.kvcache.adapter_slots import AdapterSlots
from service.kvcache.block_pool import BlockPool
from service.kvcache.block_table import BlockTable
from service.kvcache.known_blocks import KnownBlocks
from service.kvcache.training_arena import TrainingArena


class BlockSupply:
    """Blocks of a training and of idle adapters can be had as free ones can: if no others are free, who takes blocks
    ends the one's loan, and then makes the others go. A prefix that was found in a block is forgotten with it.
    """

    def __init__(self, pool: BlockPool, known: KnownBlocks, adapter_slots: AdapterSlots, arena: TrainingArena) -> None:
        self._pool = pool
        self._known = known
        self._adapter_slots = adapter_slots
        self._arena = arena

    @property
    def num_available(self) -> int:
        """Blocks that can be taken now: free ones, and those of a training and of idle adapters."""
        return self._pool.num_free + self._arena.num_blocks + self._adapter_slots.num_idle_blocks

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
            self._arena.give_back()
            self._adapter_slots.free_blocks(count)
