"""KV blocks lent to a training for its activations while requests do not need them.

The arena holds one tensor, so its blocks are contiguous. They count as available: when an allocation needs any of them,
all are taken back, and the training loses its current micro-batch.
"""

from __future__ import annotations

from service.core.training import Arena
from service.kvcache.block_pool import BlockPool


class TrainingArena:
    """Engine thread only.

    A training iteration in flight may still compute in blocks that were taken back. That is safe: only later plans
    write other things there, and the device runs plans in order.

    lent: the blocks lent at present, if any. num_idle_blocks: how many these are. num_lent, num_given_back: how often
    that has happened.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.lent: Arena | None = None
        self.num_idle_blocks = 0
        self.num_lent = 0
        self.num_given_back = 0

    def held_blocks(self) -> range:
        return range(0) if self.lent is None else self.lent.block_ids

    def free_blocks(self, num_blocks: int) -> None:
        """See `Borrower`."""
        if self._pool.num_free < num_blocks:
            self.give_back()

    def lend(self, first_block: int, num_blocks: int) -> None:
        """Lend these blocks, which the caller has allocated."""
        assert self.lent is None, "there is one arena"
        self.num_lent += 1
        self.lent, self.num_idle_blocks = Arena(self.num_lent, first_block, num_blocks), num_blocks

    def give_back(self) -> None:
        """Free the arena's blocks, if any are lent. Nothing in them is cached."""
        block_ids = self.held_blocks()
        self.lent, self.num_idle_blocks = None, 0
        if block_ids:
            self.num_given_back += 1
            self._pool.release_empty(block_ids)
