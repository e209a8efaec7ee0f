"""When to lend KV blocks to a training (kvcache/training_arena.py); FineInfer leaves this to future work.

Requests have priority without asking: allocating a block takes the arena back if necessary. What is decided here is
when to lend it, so that it does not change hands all the time.
"""

from __future__ import annotations

from service.core.block_moves import BlockCopy
from service.core.clock import Clock
from service.core.training import Arena
from service.errors import ServerError
from service.kvcache.block_manager import BlockManager
from service.scheduler.decision_tally import DecisionTally

MOST_OCCUPIED = 0.75
"""The arena is lent only while at most this share of the other blocks is occupied. It is taken back when all are."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
"""After a loan that ended before a micro-batch was done, there is none for FIRST_PAUSE_S, and twice as long after each
further one. Such a loan costs the copies of blocks that were in the way, cached prefixes, and the work done in it."""


UNUSED_S = 10.0
"""An arena unused for so long is given back: as long as it is lent, it leaves less room for cached prefixes."""


class ArenaLending:
    """Serves one training at a time. Engine thread only."""

    def __init__(self, blocks: BlockManager, clock: Clock) -> None:
        self._blocks = blocks
        self._clock = clock
        self._num_blocks = 0
        self._steps_each = 1
        self._num_steps: int | None = None  # layer steps planned in this loan; None: no loan
        self._pause_s = FIRST_PAUSE_S
        self._paused_until_s = 0.0
        self._used_s = 0.0

    def begin(self, num_blocks: int, steps_each: int) -> None:
        """A training begins. num_blocks: KV blocks that it needs while it computes, 0 if none. steps_each: layer steps
        per micro-batch. Raises ServerError if the cache has fewer blocks."""
        num_there = self._blocks.pool.num_blocks
        if num_blocks > num_there:
            raise ServerError(
                f"A micro-batch needs {num_blocks} KV blocks, but the KV cache has only {num_there};"
                " raise kv-cache-memory.",
                code="out_of_memory",
            )
        self._num_blocks, self._steps_each = num_blocks, steps_each
        self._pause_s, self._paused_until_s = FIRST_PAUSE_S, 0.0

    def end(self) -> None:
        """The training has ended or was stopped."""
        self._blocks.arena.give_back()
        self._num_blocks, self._num_steps = 0, None

    @property
    def lacks_memory(self) -> bool:
        """Whether there is a training that needs an arena and has none."""
        return self._num_blocks > 0 and self._blocks.arena.lent is None

    def may_use(self, *, is_idle: bool) -> bool:
        """Whether the training has its memory, or could be lent it now. is_idle: there are no requests."""
        blocks = self._blocks
        if not self.lacks_memory:
            return True
        is_paused = not is_idle and self._clock.now_s() < self._paused_until_s
        num_beside = blocks.pool.num_blocks - self._num_blocks
        return not is_paused and blocks.num_occupied <= MOST_OCCUPIED * num_beside

    def borrow(self) -> list[BlockCopy] | None:
        """Lend the training its memory, if it has none; `may_use` must be True. None: no place could be made for it.
        Otherwise the copies to be made before anything else is written to the pool, which move blocks of running
        groups out of the way. The decode batch must be empty."""
        if not self.lacks_memory:
            return []
        copies = self._blocks.lend_arena(self._num_blocks)
        if copies is None:  # trying again at once would fail, too
            self._paused_until_s = self._clock.now_s() + FIRST_PAUSE_S
        else:
            self._num_steps = 0
        return copies

    def use(self, num_layer_steps: int) -> Arena | None:
        """Count layer steps that are planned. Returns where they compute."""
        if self._num_steps is not None:
            self._num_steps += num_layer_steps
            self._used_s = self._clock.now_s()
        return self._blocks.arena.lent

    def note_return(self, tally: DecisionTally) -> None:
        """Call before each decision: notices whether requests took the arena back since the last one, and gives it back
        if it was unused for UNUSED_S."""
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
