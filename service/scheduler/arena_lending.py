"""When a training gets memory of the KV pool (kvcache/training_arena.py); FineInfer's report leaves it to future work.

Requests come first without being asked: who allocates a block takes the arena back. What is decided here is when it is
lent, so that it does not go to and fro.
"""

from __future__ import annotations

from service.core.block_moves import BlockCopy
from service.core.clock import Clock
from service.core.training import Arena
from service.errors import ServerError
from service.kvcache.block_manager import BlockManager
from service.scheduler.decision_tally import DecisionTally

MOST_OCCUPIED = 0.75
"""Of the blocks beside the arena, when it is lent: it is taken back when all are occupied."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
"""Without a loan, after one that ended before a micro-batch was done; twice as long after each further one. Such a loan
costs the copies of blocks that were in the way, prefixes that are found no more, and what was computed in it."""


UNUSED_S = 10.0
"""After which an arena is given back unasked: what requests had cached would have to go while it lies idle."""


class ArenaLending:
    """For one training at a time. Engine thread only."""

    def __init__(self, blocks: BlockManager, clock: Clock) -> None:
        self._blocks = blocks
        self._clock = clock
        self._num_blocks = 0
        self._steps_each = 1
        self._num_steps: int | None = None  # planned in this loan; None without one
        self._pause_s = FIRST_PAUSE_S
        self._paused_until_s = 0.0
        self._used_s = 0.0

    def begin(self, num_blocks: int, steps_each: int) -> None:
        """A training needs so many blocks whenever it computes, 0 if none. steps_each: layer steps of one of its
        micro-batches. Raises ServerError if there are not as many."""
        num_there = self._blocks.pool.num_blocks
        if num_blocks > num_there:
            raise ServerError(
                f"A micro-batch takes {num_blocks} KV blocks, and there are {num_there}: kv-cache-memory is too small.",
                code="out_of_memory",
            )
        self._num_blocks, self._steps_each = num_blocks, steps_each
        self._pause_s, self._paused_until_s = FIRST_PAUSE_S, 0.0

    def end(self) -> None:
        """It is over, or stopped."""
        self._blocks.arena.give_back()
        self._num_blocks, self._num_steps = 0, None

    @property
    def lacks_memory(self) -> bool:
        """Whether there is a training that needs some and has none."""
        return self._num_blocks > 0 and self._blocks.arena.lent is None

    def may_use(self, *, is_idle: bool) -> bool:
        """Whether the training has its memory, or is lent some if it asks for it. is_idle: there is no request."""
        blocks = self._blocks
        if not self.lacks_memory:
            return True
        is_paused = not is_idle and self._clock.now_s() < self._paused_until_s
        num_beside = blocks.pool.num_blocks - self._num_blocks
        return not is_paused and blocks.num_occupied <= MOST_OCCUPIED * num_beside

    def borrow(self) -> list[BlockCopy] | None:
        """The training has its memory from now on; None: there is no place for it. `may_use` said that it may. The
        copies are to be carried out before anything else is written to the pool. They are blocks of those who run, of
        whom none may be in the decode batch."""
        if not self.lacks_memory:
            return []
        copies = self._blocks.lend_arena(self._num_blocks)
        if copies is None:  # to look for it again at once would be as vain
            self._paused_until_s = self._clock.now_s() + FIRST_PAUSE_S
        else:
            self._num_steps = 0
        return copies

    def use(self, num_layer_steps: int) -> Arena | None:
        """So many are planned. Returns where they compute."""
        if self._num_steps is not None:
            self._num_steps += num_layer_steps
            self._used_s = self._clock.now_s()
        return self._blocks.arena.lent

    def note_return(self, tally: DecisionTally) -> None:
        """To be called before each decision: whether requests have taken the arena back since the last one. One that
        has not been used for long is given back."""
        if self._num_steps is None:
            return
        if self._blocks.arena.lent is not None:
            if self._clock.now_s() - self._used_s > UNUSED_S:
                self._blocks.arena.give_back()
                self._num_steps = None
            return
        tally.num_arena_returns += 1
        tally.num_micro_batches_lost += self._num_steps % self._steps_each > 0
        if self._num_steps >= self._steps_each:
            self._pause_s = FIRST_PAUSE_S
        else:
            self._paused_until_s = self._clock.now_s() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._num_steps = None
