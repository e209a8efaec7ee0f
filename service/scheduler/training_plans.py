"""Iterations while there is a training: its layer steps get plans of their own, between those of requests."""

from __future__ import annotations

from collections.abc import Callable

from service.core.clock import Clock
from service.core.iteration import IterationPlan
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.group_start import GroupStart
from service.scheduler.lanes import Lanes, LaunchedGroups, LaunchedIterations
from service.scheduler.request_pool import RequestPool
from service.scheduler.training_turns import TrainingTurns


class TrainingPlans:
    """Engine thread only. turns: decides when the training has a turn, and for how long."""

    def __init__(
        self,
        turns: TrainingTurns,
        pool: RequestPool,
        lanes: Lanes,
        launched: LaunchedIterations,
        start: GroupStart,
        clock: Clock,
    ) -> None:
        self._turns = turns
        self._pool = pool
        self._lanes = lanes
        self._launched = launched
        self._start = start
        self._clock = clock

    def schedule(self, of_requests: Callable[[], IterationPlan], tally: DecisionTally) -> IterationPlan:
        """The next iteration while there is a training. Empty if it is the training's turn and it may not begin yet.
        of_requests: decides an iteration of requests. tally: gets this decision's counts."""
        training, pool, now_s = self._turns, self._pool, self._clock.now_s()
        training.lending.note_return(tally)
        num_steps, must_wait = training.num_next(pool, now_s), training.must_wait
        plan = self._plan(0 if must_wait else num_steps, now_s)
        if not plan.is_empty or (num_steps and must_wait and not pool.running):
            if pool.waiting and not pool.running:
                self._start.let_wait("deferral")
            return plan
        tally.deferrals += training.looks_at(pool, now_s)
        plan = of_requests()
        if plan.is_empty and not pool.running:
            return self._plan(0 if must_wait else training.num_idle(pool), now_s)
        training.follow(plan)
        return plan

    def _plan(self, num_layer_steps: int, now_s: float) -> IterationPlan:
        """A plan with layer steps. Empty if there are none, or no memory for them."""
        if num_layer_steps and self._turns.lending.lacks_memory:
            self._lanes.dissolve(self._pool.running)  # their blocks may have to move
        turn = self._turns.take(num_layer_steps, now_s) if num_layer_steps else None
        if turn is None:
            return IterationPlan(())
        self._launched.begin(LaunchedGroups(None, []))
        return IterationPlan((), turn.copies, training=turn.share)
