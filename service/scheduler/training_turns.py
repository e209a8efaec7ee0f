"""When a training has its turn, and for how many layer steps. Whether it or requests go first: deferred_batching.py."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from service.core.block_moves import BlockCopy
from service.core.iteration import IterationPlan
from service.core.stats import Deferral, Prediction
from service.core.training import TrainingOutcome, TrainingShare
from service.prediction.layer_step_time import LayerStepTime
from service.scheduler.arena_lending import ArenaLending
from service.scheduler.deferred_batching import TrainingPolicy
from service.scheduler.request_pool import RequestPool

PIECE_S = 4e-3
"""Of layer steps in one plan, if more than one are shorter: who comes meanwhile waits for as much. What the host does
for a plan, 0.1 to 0.2 ms, is then a few percent on a CPU, and passes beside the device on a GPU."""


TRIED_AGAIN_AFTER_S, FIRST_TRIED_AFTER_S = 10.0, 0.25
"""Where there is slack, but no layer step fits by the estimate, one is run so often all the same: an estimate that has
become wrong would starve the training for ever. At 20 ms a token one gap in 500 is longer for it. Sooner while the
estimate is doubtful, which it is once for a layer step at the most."""


class _Piece(NamedTuple):
    """Layer steps start, start + 1, ... of an iteration. ends: the iteration, too. predicted_s: None where nothing was
    known."""

    start: int
    num_steps: int
    ends: bool
    predicted_s: float | None


class TrainingTurn(NamedTuple):
    """What a plan has of a training, and the copies that make room for it."""

    share: TrainingShare
    copies: tuple[BlockCopy, ...]


class TrainingTurns:
    """The one training that may run, if any. Engine thread only.

    A piece of it is a plan of its own, so that no token waits for it: who decodes gets theirs before it begins, and who
    comes is looked at behind it. Pieces end with the fine-tuning iteration at the latest.

    is_runnable: whether there is a training. one_at_a_time: a piece begins once the one before is done, and not behind
    it in the queue of a device. With the stages of a model there are several devices, of which one may find that the
    training has to end; and who comes is to wait for no more than a piece.
    """

    def __init__(self, policy: TrainingPolicy, lending: ArenaLending, *, one_at_a_time: bool = False) -> None:
        self._policy = policy
        self._one_at_a_time = one_at_a_time
        self.lending = lending
        self._training_id = 0
        self._time = LayerStepTime(1)
        self._steps_per_iteration = self._num_steps = self._left = 1
        self._pieces: deque[_Piece] = deque()  # that run
        self.is_runnable = False
        self._slack_s = 0.0
        self._newest = -1  # of the requests that a decision has looked at, by their order of arrival
        self._deferred_until_s = self._since_s = self._taken_s = -math.inf

    def start(
        self, training_id: int, layer_steps_per_iteration: int, layer_steps_left: int, num_blocks: int = 0
    ) -> None:
        """It may run from now on. layer_steps_left: of its iteration. num_blocks: KV blocks that it computes in. Raises
        ServerError if there are not as many."""
        assert not self.is_runnable
        self.lending.begin(num_blocks, layer_steps_per_iteration)
        self._training_id = training_id
        self._time = LayerStepTime(layer_steps_per_iteration)
        self._steps_per_iteration = self._num_steps = layer_steps_per_iteration
        self._left = layer_steps_left
        self.is_runnable = True

    def stop(self) -> None:
        """It runs no more."""
        self.is_runnable, self._slack_s = False, 0.0
        self._pieces.clear()
        self.lending.end()

    @property
    def predicted_s(self) -> float | None:
        """What the oldest piece that runs is predicted to take; None if that is not known, or none runs."""
        return self._pieces[0].predicted_s if self._pieces else None

    @property
    def must_wait(self) -> bool:
        """Whether no piece may begin yet."""
        return self._one_at_a_time and bool(self._pieces)

    def num_next(self, pool: RequestPool, now_s: float) -> int:
        """How many layer steps come next, before any request; 0: requests go first."""
        if not self._has_memory(pool):
            return 0
        if pool.running:
            return 0 if _newest(pool) > self._newest else self._num_beside(now_s)
        if pool.waiting and self._admits(pool, now_s):
            return 0
        return self._piece()

    def num_idle(self, pool: RequestPool) -> int:
        """How many come next where no request runs or can start; 0: there is no memory for any."""
        return self._piece() if self._has_memory(pool) else 0

    def take(self, num_steps: int, now_s: float) -> TrainingTurn | None:
        """They are launched. None: there is no place for its memory, after all. While it `lending.lacks_memory`, nobody
        may be in the decode batch."""
        is_anew = self.lending.lacks_memory
        copies = self.lending.borrow()
        if copies is None:
            return None
        if is_anew:  # a micro-batch under way is done again
            self._left = self._num_steps
        start = self._num_steps - self._left
        predicted_s = self._time.predicted_s(start, num_steps)
        self._pieces.append(_Piece(start, num_steps, num_steps == self._left, predicted_s))
        self._pass(num_steps)
        self._slack_s = 0.0 if predicted_s is None else self._slack_s - predicted_s
        self._taken_s = now_s
        if self._since_s == -math.inf:
            self._since_s = now_s
        return TrainingTurn(TrainingShare(self._training_id, num_steps, self.lending.use(num_steps)), tuple(copies))

    def looks_at(self, pool: RequestPool, now_s: float) -> Iterator[Deferral]:
        """Requests are looked at next: what those who came since the last time have waited for the training."""
        since_s, deferred_until_s = self._since_s, self._deferred_until_s
        newest, self._newest = self._newest, max(self._newest, _newest(pool))
        self._since_s = self._deferred_until_s = -math.inf
        if since_s == -math.inf:
            return
        for group in reversed(pool.waiting):
            if group.arrival_order <= newest:
                break
            arrival_s = group.request.arrival_s
            yield Deferral("bound" if arrival_s <= deferred_until_s else "piece", now_s - max(arrival_s, since_s))

    def follow(self, plan: IterationPlan) -> None:
        """This plan, of requests, is launched."""
        self._slack_s = self._policy.slack_s(plan) if plan.computes else 0.0

    def finish(self, outcome: TrainingOutcome) -> Prediction | None:
        """The oldest piece that runs has ended; how long it was predicted to take, and took. None if that says nothing,
        or the training has ended before."""
        if not self.is_runnable or outcome.training_id != self._training_id:
            return None
        piece = self._pieces.popleft()
        self._note_position(piece, outcome.layer_steps_left or self._steps_per_iteration)
        if outcome.num_layer_steps < piece.num_steps:
            return None
        self._time.observe(piece.start, piece.num_steps, outcome.seconds)
        return None if piece.predicted_s is None else Prediction("training", piece.predicted_s, outcome.seconds)

    def _admits(self, pool: RequestPool, now_s: float) -> bool:
        """Whether requests start on an empty batch. Who has run before waits for no training."""
        waited_s = now_s - pool.waiting[0].request.arrival_s
        if pool.preempted or self._policy.admits(waited_s, self._rest_s()):
            return True
        self._deferred_until_s = now_s
        return False

    def _has_memory(self, pool: RequestPool) -> bool:
        return self.lending.may_use(is_idle=len(pool) == 0)

    def _note_position(self, piece: _Piece, left: int) -> None:
        """After this piece so many steps were left. They may be fewer than of other iterations, as where validation
        examples go forward only; or more than were planned, if a micro-batch was dropped."""
        before = 0 if piece.ends else piece.start + piece.num_steps
        self._num_steps, self._left = min(before + left, self._steps_per_iteration), left
        for running in self._pieces:
            self._pass(running.num_steps)

    def _pass(self, num_steps: int) -> None:
        """So many steps are done, or planned; behind an iteration comes a usual one, as far as is known."""
        self._left -= num_steps
        if self._left <= 0:
            self._num_steps = self._steps_per_iteration
            self._left += self._steps_per_iteration

    def _num_beside(self, now_s: float) -> int:
        """Layer steps before the next iteration of the requests that run."""
        if self._slack_s <= 0.0:
            return 0
        num_steps = min(self._num_within(self._slack_s), self._piece())
        is_doubtful = self._time.is_doubtful(self._num_steps - self._left)
        is_overdue = now_s - self._taken_s >= (FIRST_TRIED_AFTER_S if is_doubtful else TRIED_AGAIN_AFTER_S)
        return max(num_steps, int(is_overdue))

    def _piece(self) -> int:
        """Layer steps."""
        return max(1, self._num_within(PIECE_S))

    def _num_within(self, seconds: float) -> int:
        """Of the iteration's layer steps that are left."""
        return self._time.num_within(seconds, self._num_steps - self._left, self._left)

    def _rest_s(self) -> float:
        """Of the iteration, with the pieces that run."""
        predicted_s = self._time.predicted_s(self._num_steps - self._left, self._left)
        if predicted_s is None:
            return math.inf
        return predicted_s + sum(piece.predicted_s or 0.0 for piece in self._pieces)


def _newest(pool: RequestPool) -> int:
    return pool.waiting[-1].arrival_order if pool.waiting else -1
