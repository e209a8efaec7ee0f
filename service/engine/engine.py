"""One iteration: decide (the scheduler), execute (the executor), apply (result_applier.py); ORCA, figure 4.

Synchronous; engine thread only.

Iterations may overlap: the next one is decided and launched while the one before it still runs, so that the device
never waits for the host. Decoding needs no result for that. The executor has the ids that were drawn (PENDING_TOKEN_ID
in the plan), and lengths and blocks are known beforehand. Only a stop is seen one iteration late: the token that was
drawn meanwhile is dropped, and blocks stay until that iteration is over (`IterationScheduler.finish_iteration`). What
needs the result, as the several choices of a prompt do, sits out one iteration; preemption waits until nothing runs.
Where the model has several stages, as many iterations are in flight, each of other requests (scheduler/lanes.py).
Nor is the next iteration launched before the device is nearly free (`spare_s`), so that requests which arrive until
then are in it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from service.core.clock import Clock
from service.core.failed_launch import FailedLaunch
from service.core.grammar import TokenMasker
from service.core.iteration import IterationPlan
from service.core.stats import EngineSnapshot
from service.engine.engine_probe import probe
from service.engine.engine_snapshots import EngineSnapshots
from service.engine.fenced_sink import FencedSink
from service.engine.grammar_masks import FailedMasks, with_masks
from service.engine.live_requests import LiveRequests
from service.engine.live_training import LiveTraining
from service.engine.ports import Executor, IdleWork, NoIdleWork, PendingIteration, StatsSink, TrainingExecutor
from service.engine.result_applier import ResultApplier
from service.engine.step_record import Launched, StepRecord
from service.errors import ServerError
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.iteration_scheduler import IterationScheduler

logger = logging.getLogger(__name__)


class Engine:
    """Launches iterations and has their results applied.

    overlap: whether an iteration is launched while another runs. The tokens are the same either way.
    masker: computes what draws may be; needed by requests with grammars only. idle_work: what can wait for a pause
    (idle_turns.py). trainings: carries them on, if this engine may have any.

    scheduler: who waits and runs. requests: those that have not ended; accepts, ends and tells of them. training: the
    one that is carried on, if any.
    num_failed_in_a_row: iterations that the executor could not carry out, or that gave none of their requests anything
        because of a fault of ours. One request's fault beside others that go on is no failed iteration.
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
        self._launched: deque[Launched] = deque()
        self._num_lanes = len(scheduler.lanes)
        self._max_launched = max(2 if overlap else 1, self._num_lanes)
        self._batch_size = 0
        self._snapshots = EngineSnapshots(scheduler, clock)
        self.num_failed_in_a_row = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: some request has not ended, some iteration still runs, blocks of an ended
        request are still being transferred, or there is a training."""
        return bool(self._launched) or self.has_requests or self.scheduler.training.is_runnable

    @property
    def has_requests(self) -> bool:
        """Whether some request has not ended, or holds blocks that are still being transferred."""
        pool = self.scheduler.pool
        return bool(pool.running or pool.waiting) or self.scheduler.blocks.swap_space.has_transfers

    @property
    def has_launched(self) -> bool:
        """Whether an iteration still runs; the next step waits for it."""
        return bool(self._launched)

    def spare_s(self, *, has_arrivals: bool) -> float:
        """Seconds by which the next step may be delayed, so that requests which arrive until then are in it. 0 while
        requests wait: they are before any new one. has_arrivals: whether some have come that would be added before it;
        with these it takes longer."""
        if self._max_launched == 1 or len(self._launched) != 1 or self._num_lanes > 1 or self.scheduler.pool.waiting:
            return 0.0
        return self._record.spare_s(self._launched[0], has_arrivals=has_arrivals)

    def step(self, before_wait: Callable[[], None] | None = None) -> bool:
        """Decide and launch the next iteration; apply the oldest if as many run as may, or all if none was launched.
        Where lanes take turns, that is the oldest alone. False if there was nothing to launch and nothing to apply; no
        request may wait then.

        A fault of the executor ends the requests that were in that iteration, and no others. before_wait: called
        when all is launched that may be, before the wait for a result.
        """
        may_run = self._max_launched - 1 if self._launch_next() else self._num_behind_oldest()
        if before_wait is not None:
            before_wait()
        if not self._launched:
            return False
        self._complete_all_but(may_run)
        return True

    def probe(self) -> bool | None:
        """Compute a prompt of the engine's own (engine_probe.py). If it gets a token, what failed before was what
        clients had asked for, and no iteration counts as failed any more."""
        self.finish_launched()
        has_drawn = probe(self.scheduler, self._executor)
        if has_drawn:
            self.num_failed_in_a_row = 0
        return has_drawn

    def finish_launched(self) -> None:
        """Wait for all iterations that run, and apply them."""
        self._complete_all_but(0)

    def stop_training(self, training_id: int, *, wants_state: bool) -> None:
        """End this training in order, between two of its layer steps; nothing happens if it has ended. wants_state: its
        listener gets a snapshot before, from which it can go on."""
        self.finish_launched()
        self.training.stop(training_id, wants_state=wants_state)

    def interrupt_training(self) -> None:
        """The engine stops in order: the training, if there is one, leaves a snapshot."""
        self.finish_launched()
        self.training.interrupt(wants_state=True)

    def snapshot(self) -> EngineSnapshot:
        """What is told of the present moment."""
        return self._snapshots.take(self._batch_size, self.num_failed_in_a_row)

    def _decide(self) -> IterationPlan:
        """A fault in the scheduler itself leaves its books in doubt: it is not caught."""
        plan = self.scheduler.schedule()
        if self.scheduler.pool.waiting:
            for group, fault in self.scheduler.group_start.take_refused():
                self.requests.fail_inside(group, fault)
        if not self.requests.constrained:
            return plan
        assert self._masker is not None, "who accepts grammars has a masker"
        try:
            return with_masks(plan, self.scheduler.pool, self._masker)
        except Exception as fault:
            return replace(plan, masks=FailedMasks(fault))

    def _launch_next(self) -> bool:
        """Decide and launch an iteration; False if there is nothing to compute, or the launch has failed."""
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
        except Exception as fault:  # told by `wait`, in its turn
            pending = FailedLaunch(fault)
        tally = self.scheduler.take_tally() if plan.training is None else DecisionTally()
        self._launched.append(self._record.launched(plan, pending, tally, started_s, scheduled_s))
        return not isinstance(pending, FailedLaunch)

    def _num_behind_oldest(self) -> int:
        """Nothing could be launched: how many iterations may run on while the oldest one is waited for. Where lanes
        take turns, its own lane is free then; else, and after a failed launch, the decision needs all results."""
        is_failed = bool(self._launched) and isinstance(self._launched[-1].pending, FailedLaunch)
        return 0 if self._num_lanes == 1 or is_failed else max(0, len(self._launched) - 1)

    def _complete_all_but(self, num_launched: int) -> None:
        """Wait for iterations and apply them, until so many still run."""
        while len(self._launched) > num_launched:
            self._complete(self._launched.popleft())

    def _complete(self, launched: Launched) -> None:
        """Wait for the iteration and apply it."""
        started_s, was_done = self._clock.now_s(), launched.pending.is_done()
        try:
            result = launched.pending.wait()
        except Exception:
            logger.exception("an iteration of %d sequences failed", launched.plan.num_sequences)
            self._lose(launched)
            return
        is_last = not self._launched
        executed = self._record.executed(launched, result, started_s, was_done=was_done, is_last=is_last)
        num_failed = self.requests.num_failed
        tokens = self._applier.apply(launched.plan, result)
        if result.training is not None:
            self.training.apply(result.training)
            return
        if self.num_failed_in_a_row or self.requests.num_failed > num_failed:
            self._note_whether_failed()
        self._record.applied(launched, result, executed, tokens)

    def _lose(self, launched: Launched) -> None:
        self.num_failed_in_a_row += 1
        self._record.lost()
        self.requests.lose(self.scheduler.finish_iteration().all(), launched.plan)
        if launched.plan.training is not None:
            self.training.fail(ServerError("an iteration that held this training failed"))
        if isinstance(launched.pending, FailedLaunch):
            # None came behind it, and the executor may not have heard of these.
            self.scheduler.blocks.release_rows(launched.plan.released)

    def _note_whether_failed(self) -> None:
        gave = self._applier.gave_something()
        if gave:
            self.num_failed_in_a_row = 0
        elif gave is False:
            self.num_failed_in_a_row += 1
