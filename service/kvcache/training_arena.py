"""The memory that a training borrows from the KV pool for its activations, while the requests do not need it.

One tensor lies in it, so it is a contiguous run of blocks. It is nobody's property: to whoever allocates, the arena's
blocks are as good as free, and at the first need the training loses all of them, with the micro-batch under way.
"""

from __future__ import annotations

from service.core.training import Arena
from service.kvcache.block_pool import BlockPool


class TrainingArena:
    """Engine thread only.

    An iteration that runs may still compute in blocks that are given back: whatever is written there is written by a
    later plan, which the device carries out behind it.

    lent: the blocks, while a training has them. num_idle_blocks: as many as these are. num_lent, num_given_back: so
    many times, ever.
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
        """These blocks, which the caller has taken, are the training's."""
        assert self.lent is None, "there is one arena"
        self.num_lent += 1
        self.lent, self.num_idle_blocks = Arena(self.num_lent, first_block, num_blocks), num_blocks

    def give_back(self) -> None:
        """Its blocks are free, if there are any; nobody will look for anything in them."""
        block_ids = self.held_blocks()
        self.lent, self.num_idle_blocks = None, 0
        if block_ids:
            self.num_given_back += 1
            self._pool.release_empty(block_ids)
