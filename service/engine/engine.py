"""One engine step: decide (the scheduler), execute (the executor), apply (result_applier.py); ORCA, figure 4.

Synchronous; engine thread only.

Iterations may overlap: iteration N+1 is decided and launched while N still runs, so the device never waits for the
host. Decodes do not need N's result: the plan says PENDING_TOKEN_ID and the executor fills in the id that it drew;
lengths and blocks are known in advance. The cost: a stop is seen one iteration late, so the extra token is dropped, and
blocks are kept until the iteration in flight ends (`IterationScheduler.finish_iteration`). Requests that do need the
result (a prompt with several choices, for example) skip one iteration. Preemption waits until nothing is in flight.
A pipeline of P stages has up to P iterations in flight, and no request is in two of them (scheduler/lanes.py).
A launch is delayed until the device is nearly idle (`spare_s`), so that requests arriving meanwhile can join it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from service.core.clock import Clock
from service.core.failed_launch import FailedLaunch
from service.core.grammar import TokenMasker
from service.core.iteration import IterationPlan
from service.core.stats import EngineSnapshot
from service.engine.engine_probe import probe
from service.engine.engine_snapshots import EngineSnapshots
from service.engine.failed_iterations import FailedIterations
from service.engine.fenced_sink import FencedSink
from service.engine.grammar_masks import with_masks
from service.engine.live_requests import LiveRequests
from service.engine.live_training import LiveTraining
from service.engine.ports import Executor, IdleWork, NoIdleWork, PendingIteration, StatsSink, TrainingExecutor
from service.engine.result_applier import ResultApplier
from service.engine.step_record import Launched, StepRecord
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.iteration_scheduler import IterationScheduler

logger = logging.getLogger(__name__)


class Engine:
    """Launches iterations and has their results applied.

    overlap: launch an iteration while another runs. The tokens are the same either way.
    masker: computes the masks of requests with a grammar; None where none may have one. idle_work: preparation that can
    wait until nothing runs (idle_turns.py). trainings: runs training steps; None if no trainings are accepted.

    scheduler: waiting and running requests. requests: accepts, ends and reports live ones. training: the active one.
    failed: what becomes of iterations that fail, and how many have in a row.
    """

    def __init__(
        self,
        scheduler: IterationScheduler,
        executor: Executor,
        stats_sink: StatsSink,
        clock: Clock,
        *,
        overlap: bool = False,
        masker: TokenMasker | None = None,
        idle_work: IdleWork | None = None,
        trainings: TrainingExecutor | None = None,
    ) -> None:
        sink = FencedSink(stats_sink)
        self.scheduler = scheduler
        self.requests = LiveRequests(scheduler, sink, clock)
        self.training = LiveTraining(scheduler.training, trainings, sink)
        self._executor = executor
        self._clock = clock
        self._masker = masker
        self.idle_work = idle_work or NoIdleWork()
        self._applier = ResultApplier(self.requests, scheduler, clock)
        self._record = StepRecord(scheduler.ledger, sink, clock, scheduler.predicted_s)
        self.failed = FailedIterations(self.requests, self.training, scheduler, self._record)
        self._launched: deque[Launched] = deque()
        self._num_lanes = len(scheduler.lanes)
        self._max_launched = max(2 if overlap else 1, self._num_lanes)
        self._batch_size = 0
        self._snapshots = EngineSnapshots(scheduler, clock)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: a request is live, an iteration is in flight, blocks of an ended request
        are still being transferred, or a training can run."""
        return bool(self._launched) or self.has_requests or self.scheduler.training.is_runnable

    @property
    def has_requests(self) -> bool:
        """Whether any request is live, or blocks of an ended request are still being transferred."""
        pool = self.scheduler.pool
        return bool(pool.running or pool.waiting) or self.scheduler.blocks.swap_space.has_transfers

    @property
    def has_launched(self) -> bool:
        """Whether an iteration is in flight. The next step may wait for it."""
        return bool(self._launched)

    def spare_s(self, *, has_arrivals: bool) -> float:
        """Seconds by which the next step may be delayed, so that requests arriving until then can join it. 0 while
        requests are waiting, since they go before any new arrival. has_arrivals: whether requests in the inbox would be
        added before that step; adding them takes time, so the delay is shorter."""
        if self._max_launched == 1 or len(self._launched) != 1 or self._num_lanes > 1 or self.scheduler.pool.waiting:
            return 0.0
        return self._record.spare_s(self._launched[0], has_arrivals=has_arrivals)

    def step(self, before_wait: Callable[[], None] | None = None) -> bool:
        """Launch the next iteration, then apply finished ones. Returns False if there was nothing to launch and nothing
        to apply; no request may be waiting then.

        After a launch, the oldest ones are applied until fewer than the maximum are in flight. Otherwise all are; but
        with several lanes only the oldest, since that frees its lane. An executor fault ends the requests of that
        iteration and no others. before_wait: called after the launch and before the wait for a result.
        """
        may_run = self._max_launched - 1 if self._launch_next() else self._num_behind_oldest()
        if before_wait is not None:
            before_wait()
        if not self._launched:
            return False
        self._complete_all_but(may_run)
        return True

    def probe(self) -> bool | None:
        """Run a tiny prompt of the engine's own (engine_probe.py). True: it got a token, so the earlier failures were
        caused by what clients asked for, and `failed.num_in_a_row` is reset. None: there was no room for it."""
        self.finish_launched()
        has_drawn = probe(self.scheduler, self._executor)
        if has_drawn:
            self.failed.num_in_a_row = 0
        return has_drawn

    def finish_launched(self) -> None:
        """Wait for all iterations in flight and apply them."""
        self._complete_all_but(0)

    def stop_training(self, training_id: int, *, wants_state: bool) -> None:
        """Stop this training between two layer steps; does nothing if it has ended. wants_state: its listener first
        gets a snapshot to resume from."""
        self.finish_launched()
        self.training.stop(training_id, wants_state=wants_state)

    def interrupt_training(self) -> None:
        """The engine is shutting down: stop the training, if there is one, after a snapshot."""
        self.finish_launched()
        self.training.interrupt(wants_state=True)

    def snapshot(self) -> EngineSnapshot:
        """The engine's present state, for metrics and admission."""
        return self._snapshots.take(self._batch_size, self.failed.num_in_a_row)

    def _decide(self) -> IterationPlan:
        """The next plan, with its masks. A scheduler fault is not caught: its bookkeeping may be inconsistent."""
        plan = self.scheduler.schedule()
        if self.scheduler.pool.waiting:
            for group, fault in self.scheduler.group_start.take_refused():
                self.requests.fail_inside(group, fault)
        if not self.requests.constrained:
            return plan
        assert self._masker is not None, "who accepts grammars has a masker"
        return with_masks(plan, self.scheduler.pool, self._masker)

    def _launch_next(self) -> bool:
        """Decide and launch an iteration. False if there is nothing to compute, or if the launch failed."""
        started_s = self._record.launches(has_arrivals=bool(self.scheduler.pool.waiting))
        plan = self._decide()
        if plan.is_empty:
            return False
        scheduled_s = self._clock.now_s()
        if plan.training is None:
            self._batch_size = plan.num_sequences - plan.num_drafts
        pending: PendingIteration
        try:
            pending = self._executor.launch(plan)
        except Exception as fault:  # raised by `wait`, when its turn comes
            pending = FailedLaunch(fault)
        tally = self.scheduler.take_tally() if plan.training is None else DecisionTally()
        self._launched.append(self._record.launched(plan, pending, tally, started_s, scheduled_s))
        return not isinstance(pending, FailedLaunch)

    def _num_behind_oldest(self) -> int:
        """How many iterations may stay in flight while the oldest is awaited, when nothing could be launched. With
        several lanes: all others, since finishing the oldest frees its lane. With one lane, or after a failed launch:
        none, since the next decision needs all results."""
        is_failed = bool(self._launched) and isinstance(self._launched[-1].pending, FailedLaunch)
        return 0 if self._num_lanes == 1 or is_failed else max(0, len(self._launched) - 1)

    def _complete_all_but(self, num_launched: int) -> None:
        """Wait for the oldest iterations and apply them, until `num_launched` are left in flight."""
        while len(self._launched) > num_launched:
            self._complete(self._launched.popleft())

    def _complete(self, launched: Launched) -> None:
        """Wait for the iteration and apply its result."""
        started_s, was_done = self._clock.now_s(), launched.pending.is_done()
        try:
            result = launched.pending.wait()
        except Exception:
            logger.exception("an iteration of %d sequences failed", launched.plan.num_sequences)
            self.failed.lose(launched)
            return
        is_last = not self._launched
        executed = self._record.executed(launched, result, started_s, was_done=was_done, is_last=is_last)
        num_failed, num_told = self.requests.num_failed, len(self.requests.events)
        tokens = self._applier.apply(launched.plan, result)
        if result.training is not None:
            self.training.apply(result.training)
            return
        if self.failed.num_in_a_row or self.requests.num_failed > num_failed:
            self.failed.note(self.requests.events[num_told:])
        self._record.applied(launched, result, executed, tokens)
