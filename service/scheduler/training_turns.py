"""When a training has its turn, and for how many layer steps. Who goes first: deferred_batching.py."""

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
"""Target duration of a plan's layer steps, if several fit: a new request waits for as long. The host's work for a plan,
0.1 to 0.2 ms, is then a few percent on a CPU, and hidden on a GPU."""


TRIED_AGAIN_AFTER_S, FIRST_TRIED_AFTER_S = 10.0, 0.25
"""If there is slack, but by estimate no layer step fits, one is run anyway at this interval: a wrong estimate would
otherwise starve the training forever. At 20 ms per token, that lengthens one gap in 500. The first retry comes sooner,
while the estimate is doubtful, which happens at most once per layer step."""


class _Piece(NamedTuple):
    """Layer steps start, start + 1, ..., start + num_steps - 1 of a fine-tuning iteration. ends: they complete it.
    predicted_s: None if nothing was known."""

    start: int
    num_steps: int
    ends: bool
    predicted_s: float | None


class TrainingTurn(NamedTuple):
    """A plan's share of the training, and the copies that make room for its arena."""

    share: TrainingShare
    copies: tuple[BlockCopy, ...]


class TrainingTurns:
    """The training that may run, if any. Engine thread only.

    Its layer steps run in pieces, each a plan of its own. So no token waits for them: requests that decode get theirs
    before a piece begins, and new requests are considered after it. A piece ends with its fine-tuning iteration.

    is_runnable: whether there is a training. one_at_a_time: start a piece only after the previous one is done, not
    queued behind it on the device. Needed with pipeline stages, where one of several devices may find that the training
    must end; also, new requests should wait for one piece only.
    """

    def __init__(self, policy: TrainingPolicy, lending: ArenaLending, *, one_at_a_time: bool = False) -> None:
        self._policy = policy
        self._one_at_a_time = one_at_a_time
        self.lending = lending
        self._training_id = 0
        self._time = LayerStepTime(1)
        self._steps_per_iteration = self._num_steps = self._left = 1
        self._pieces: deque[_Piece] = deque()  # in flight
        self.is_runnable = False
        self._slack_s = 0.0
        self._newest = -1  # largest arrival order among the requests that were considered
        self._deferred_until_s = self._since_s = self._taken_s = -math.inf

    def start(
        self, training_id: int, layer_steps_per_iteration: int, layer_steps_left: int, num_blocks: int = 0
    ) -> None:
        """A training becomes runnable. layer_steps_left: of its current fine-tuning iteration. num_blocks: KV blocks of
        its arena. Raises ServerError if the cache has fewer."""
        assert not self.is_runnable
        self.lending.begin(num_blocks, layer_steps_per_iteration)
        self._training_id = training_id
        self._time = LayerStepTime(layer_steps_per_iteration)
        self._steps_per_iteration = self._num_steps = layer_steps_per_iteration
        self._left = layer_steps_left
        self.is_runnable = True

    def stop(self) -> None:
        """The training has ended or was stopped."""
        self.is_runnable, self._slack_s = False, 0.0
        self._pieces.clear()
        self.lending.end()

    @property
    def predicted_s(self) -> float | None:
        """Predicted seconds of the oldest piece in flight; None if unknown, or if none is in flight."""
        return self._pieces[0].predicted_s if self._pieces else None

    @property
    def must_wait(self) -> bool:
        """Whether no piece may begin yet."""
        return self._one_at_a_time and bool(self._pieces)

    def num_next(self, pool: RequestPool, now_s: float) -> int:
        """How many layer steps to run before the next iteration of requests; 0: requests go first."""
        if not self._has_memory(pool):
            return 0
        if pool.running:
            return 0 if _newest(pool) > self._newest else self._num_beside(now_s)
        if pool.waiting and self._admits(pool, now_s):
            return 0
        return self._piece()

    def num_idle(self, pool: RequestPool) -> int:
        """How many layer steps to run if no request runs or can start; 0: there is no memory for them."""
        return self._piece() if self._has_memory(pool) else 0

    def take(self, num_steps: int, now_s: float) -> TrainingTurn | None:
        """Plan these layer steps, which the caller launches. None if no place for the arena was found. If it
        `lending.lacks_memory`, the decode batch must be empty."""
        is_anew = self.lending.lacks_memory
        copies = self.lending.borrow()
        if copies is None:
            return None
        if is_anew:  # an interrupted micro-batch starts again
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
        """Requests are considered next. Yields how long the training made those wait that came since the last time."""
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
        """This plan of requests is launched."""
        self._slack_s = self._policy.slack_s(plan) if plan.computes else 0.0

    def finish(self, outcome: TrainingOutcome) -> Prediction | None:
        """The oldest piece in flight has ended. Returns its predicted and actual duration; None if they cannot be
        compared, or if the training had ended before."""
        if not self.is_runnable or outcome.training_id != self._training_id:
            return None
        piece = self._pieces.popleft()
        self._note_position(piece, outcome.layer_steps_left or self._steps_per_iteration)
        if outcome.num_layer_steps < piece.num_steps:
            return None
        self._time.observe(piece.start, piece.num_steps, outcome.seconds)
        return None if piece.predicted_s is None else Prediction("training", piece.predicted_s, outcome.seconds)

    def _admits(self, pool: RequestPool, now_s: float) -> bool:
        """Whether requests may start on an empty batch. One that was preempted never waits for the training."""
        waited_s = now_s - pool.waiting[0].request.arrival_s
        if pool.preempted or self._policy.admits(waited_s, self._rest_s()):
            return True
        self._deferred_until_s = now_s
        return False

    def _has_memory(self, pool: RequestPool) -> bool:
        return self.lending.may_use(is_idle=len(pool) == 0)

    def _note_position(self, piece: _Piece, left: int) -> None:
        """After this piece `left` steps are left. The iteration may be shorter than usual (validation examples only go
        forward), or more may be left than planned (a micro-batch was dropped)."""
        before = 0 if piece.ends else piece.start + piece.num_steps
        self._num_steps, self._left = min(before + left, self._steps_per_iteration), left
        for running in self._pieces:
            self._pass(running.num_steps)

    def _pass(self, num_steps: int) -> None:
        """So many steps are done, or planned. After the iteration's end a usual one is assumed to follow."""
        self._left -= num_steps
        if self._left <= 0:
            self._num_steps = self._steps_per_iteration
            self._left += self._steps_per_iteration

    def _num_beside(self, now_s: float) -> int:
        """Layer steps to run before the next iteration of running requests."""
        if self._slack_s <= 0.0:
            return 0
        num_steps = min(self._num_within(self._slack_s), self._piece())
        is_doubtful = self._time.is_doubtful(self._num_steps - self._left)
        is_overdue = now_s - self._taken_s >= (FIRST_TRIED_AFTER_S if is_doubtful else TRIED_AGAIN_AFTER_S)
        return max(num_steps, int(is_overdue))

    def _piece(self) -> int:
        """Layer steps in a piece."""
        return max(1, self._num_within(PIECE_S))

    def _num_within(self, seconds: float) -> int:
        """How many of the iteration's remaining layer steps fit into so many seconds."""
        return self._time.num_within(seconds, self._num_steps - self._left, self._left)

    def _rest_s(self) -> float:
        """Predicted seconds left of the iteration, including pieces in flight."""
        predicted_s = self._time.predicted_s(self._num_steps - self._left, self._left)
        if predicted_s is None:
            return math.inf
        return predicted_s + sum(piece.predicted_s or 0.0 for piece in self._pieces)


def _newest(pool: RequestPool) -> int:
    return pool.waiting[-1].arrival_order if pool.waiting else -1
