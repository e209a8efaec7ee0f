"""TokenAttention's table (LightLLM): [sequence, position] -> slot of one token, block tables of block size 1.

A slot is written once, by the sequence that takes it, so nothing is ever copied on write, and a sequence lacks a slot
whenever it has a new token. So slots are taken for all sequences of an iteration at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.kvcache.block_pool import BlockPool
from service.kvcache.block_table import BlockTable
from service.kvcache.prefix_cache import PrefixCache


class TokenTable:
    """A view of the block manager's tables and pool: the same slots, the same reference counts."""

    def __init__(self, tables: dict[int, BlockTable], pool: BlockPool, prefix_cache: PrefixCache) -> None:
        self._tables = tables
        self._pool = pool
        self._prefix_cache = prefix_cache

    def slot(self, sequence_id: int, position: int) -> int:
        return self._tables[sequence_id].block_ids[position]

    def append_each(self, sequence_ids: Sequence[int]) -> list[int]:
        """One more slot for each sequence; the slots, in their order. The caller has checked that so many are free."""
        slots = self._pool.allocate_many(len(sequence_ids))
        self._prefix_cache.forget(slots)
        tables = self._tables
        for sequence_id, slot in zip(sequence_ids, slots, strict=True):
            tables[sequence_id].append(slot)
        return slots
