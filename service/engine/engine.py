"""One iteration: decide (the scheduler), execute (the executor), apply (result_applier.py); ORCA, figure 4.

Synchronous; engine thread only.

Iterations may overlap: the next one is decided and launched while the one before it still runs, so that the device
never waits for the host. Decoding needs no result for that. The executor has the ids that were drawn (PENDING_TOKEN_ID
in the plan), and lengths and blocks are known beforehand. Only a stop is seen one iteration late: the token that was
drawn meanwhile is dropped, and blocks stay until that iteration is over (`IterationScheduler.finish_iteration`). What
needs the result, as the several choices of a prompt do, sits out one iteration; preemption waits until nothing runs.
Nor is the next iteration launched before the device is nearly free (`spare_s`), so that requests which arrive until
then are in it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from service.core.clock import Clock
from service.core.events import News
from service.core.grammar import TokenMasker
from service.core.iteration_plan import IterationPlan, Sample, ScheduledSequence
from service.core.iteration_result import INVALID_TOKEN_ID, IterationResult
from service.core.rare_warning import RareWarning
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.stats import EngineSnapshot, IterationStats
from service.engine.fenced_sink import FencedSink
from service.engine.grammar_masks import FailedMasks, with_masks
from service.engine.launch_timing import LaunchTiming
from service.engine.live_requests import LiveRequests
from service.engine.ports import Executor, IdleWork, NoIdleWork, PendingIteration, StatsSink
from service.engine.processed_tokens import ProcessedTokens
from service.engine.result_applier import ResultApplier
from service.errors import RequestError
from service.kvcache.block_manager import Fit
from service.prediction.execution_time import ExecutionTime
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.iteration_scheduler import IterationScheduler

logger = logging.getLogger(__name__)

_NOTICEABLE_WAIT_S = 2e-4
"""Longer than fetching a result that is there."""

KV_TOKENS_EVERY_S = 0.5

_PROBE_ID = -1
"""Of the engine's own sequence; those of requests are numbered from 0."""

_PROBE_TOKEN_IDS = (0, 1)


class Engine:
    """Launches iterations and has their results applied; the requests themselves are `LiveRequests`'s.

    overlap: whether an iteration is launched while another runs. The tokens are the same either way.
    masker: computes what draws may be; needed by requests with grammars only. idle_work: for `use_idle_time`.
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
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._stats_sink = sink = FencedSink(stats_sink)
        self._clock = clock
        self._masker = masker
        self._idle_work = idle_work or NoIdleWork()
        self._requests = LiveRequests(scheduler, sink, clock)
        self._applier = ResultApplier(self._requests, scheduler, clock)
        self._batch_size = 0
        self._launched: deque[_Launched] = deque()
        self._max_launched = 2 if overlap else 1
        self._launch_timing = LaunchTiming()
        self._unmeasured = RareWarning(logger, "the measurements of iterations were lost, so many: %d", of_fault=True)
        self._executed_s = 0.0
        self._kv_tokens = 0
        self._kv_tokens_due_s = 0.0
        self.num_failed_in_a_row = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: some request has not ended, some iteration still runs, or blocks of an
        ended request are still being transferred."""
        return len(self._scheduler.pool) > 0 or bool(self._launched) or self._scheduler.blocks.swap_space.has_transfers

    def add(self, request: Request) -> None:
        """Accept a request; `api` has validated it."""
        self._requests.add(request)

    def abort(self, request_id: str) -> None:
        """End the request in whatever state it is; nothing happens if it has ended."""
        self._requests.abort(request_id)

    def fail(self, request_id: str, error: RequestError) -> None:
        """End the request with an error; nothing happens if it has ended."""
        self._requests.fail(request_id, error)

    def fail_unless_started(self, request_id: str, error: RequestError) -> None:
        """As `fail`, but only if the request was in no iteration yet."""
        self._requests.fail_unless_started(request_id, error)

    def stop_choice(self, request_id: str, choice_index: int) -> None:
        """End one choice because its text is complete (`LiveRequests.stop_choice`)."""
        self._requests.stop_choice(request_id, choice_index)

    @property
    def has_launched(self) -> bool:
        """Whether an iteration still runs; the next step waits for it."""
        return bool(self._launched)

    @property
    def is_going_on(self) -> bool:
        """Whether the last iteration that was launched has the same decodes as the one before, and nobody else."""
        return self._scheduler.is_going_on

    def spare_s(self, *, has_arrivals: bool) -> float:
        """Seconds by which the next step may be put off, so that requests which arrive until then are in it. 0 while
        requests wait: they are before any new one. has_arrivals: whether some have come that would be added before it;
        with these it takes longer."""
        if self._max_launched == 1 or len(self._launched) != 1 or self._scheduler.pool.waiting:
            return 0.0
        running, now_s = self._launched[0], self._clock.now_s()
        if not self._launch_timing.is_timing:
            predicted_s = self._predicted_s(running.plan)
            if predicted_s is None:
                return 0.0
            has_prompts = running.plan.num_scheduled_tokens > len(running.plan.scheduled)
            started_s = max(running.scheduled_s, self._executed_s)
            self._launch_timing.runs(started_s, predicted_s, has_prompts=has_prompts)
        spare_s = self._launch_timing.spare_s(now_s, has_arrivals=has_arrivals)
        return 0.0 if spare_s > 0.0 and running.pending.is_done() else spare_s

    def step(self, before_wait: Callable[[], None] | None = None) -> bool:
        """Decide and launch the next iteration; apply the oldest if as many run as may, or all if none was launched.
        False if there was nothing to launch and nothing to apply; no request may wait then.

        A fault of the executor ends the requests that were in that iteration, and no others. before_wait: called
        when all is launched that may be, before the wait for a result.
        """
        may_run = self._max_launched - 1 if self._launch_next() else 0
        if before_wait is not None:
            before_wait()
        if not self._launched:
            return False
        while len(self._launched) > may_run:
            self._complete(self._launched.popleft())
        return True

    def probe(self) -> bool | None:
        """Compute a prompt of the engine's own, in an iteration for itself: whether the executor draws a token for it.
        If it does, what failed before was what clients had asked for, and no iteration counts as failed any more.
        None: there is no room for it now. Raises what the executor raises.
        """
        while self._launched:
            self._complete(self._launched.popleft())
        blocks = self._scheduler.blocks
        if blocks.fit(blocks.num_blocks_for(len(_PROBE_TOKEN_IDS))) is not Fit.OK:
            return None
        blocks.allocate(_PROBE_ID, len(_PROBE_TOKEN_IDS), [])
        try:
            drawn = self._compute_probe(tuple(blocks.table(_PROBE_ID).block_ids))
        finally:
            blocks.free(_PROBE_ID)
        if drawn:
            self.num_failed_in_a_row = 0
        return drawn

    def _compute_probe(self, block_ids: tuple[int, ...]) -> bool:
        released = self._scheduler.break_off()
        greedy, samples = SamplingParams(max_tokens=1, temperature=0.0), (Sample(_PROBE_ID, 0),)
        prompt = ScheduledSequence(_PROBE_ID, _PROBE_TOKEN_IDS, 0, 0, block_ids, greedy, samples)
        token_ids: tuple[int, ...] = ()
        for plan in (IterationPlan((prompt,), released=released), IterationPlan((), released=(_PROBE_ID,))):
            result = self._executor.launch(plan).wait()
            self._scheduler.finish_transfers(result.finished_transfers)
            token_ids += result.token_ids
        return token_ids != (INVALID_TOKEN_ID,)

    def use_idle_time(self, must_give_up: Callable[[], bool] | None = None) -> bool:
        """Do a piece of the work that can wait for such a moment, or drop it once it must be given up; returns whether
        there is more. Only without work."""
        assert not self.has_work
        return self._idle_work.do_some(must_give_up)

    def catch_up(self, before_work: Callable[[], None]) -> None:
        """Where there may never be idle time: if iterations miss a piece of the work that waits for it, do it once
        those that run are applied. before_work: called in between."""
        if self._idle_work.is_missed():
            while self._launched:
                self._complete(self._launched.popleft())
            before_work()
            self._idle_work.do_some()

    def note_commands(self, seconds: float) -> None:
        """seconds: what adding and removing requests took."""
        self._stats_sink.record_commands(seconds)

    def take_events(self) -> list[News]:
        """Events since the last call, in order."""
        return self._requests.take_events()

    def describe_wait(self) -> str:
        """Who waits, and what there is for them, for the log."""
        return self._scheduler.describe_wait()

    def request_ids(self) -> list[str]:
        """Ids of the requests that have not ended."""
        return self._requests.request_ids()

    def snapshot(self) -> EngineSnapshot:
        pool, blocks = self._scheduler.pool, self._scheduler.blocks
        return EngineSnapshot(
            num_running=len(pool.running),
            num_waiting=len(pool.waiting),
            waiting_tokens=pool.waiting_tokens.total,
            distinct_waiting_tokens=pool.waiting_tokens.distinct,
            batch_size=self._batch_size if pool.running else 0,
            used_blocks=blocks.pool.num_used,
            total_blocks=blocks.pool.num_blocks,
            block_size=blocks.block_size,
            kv_tokens=self._count_kv_tokens(),
            num_swapped=self._count_swapped(),
            num_failed_in_a_row=self.num_failed_in_a_row,
        )

    def _predicted_s(self, plan: IterationPlan) -> float | None:
        """A fault of the predictor is one more reason not to know."""
        try:
            return self._scheduler.predicted_s(plan)
        except Exception:
            self._unmeasured.tell()
            return None

    def _count_swapped(self) -> int:
        swap_space = self._scheduler.blocks.swap_space
        if not swap_space.num_used:
            return 0
        return sum(swap_space.holds(group.leader.sequence_id) for group in self._scheduler.pool.preempted)

    def _count_kv_tokens(self) -> int:
        """Counted anew at most every KV_TOKENS_EVERY_S: it looks at every running sequence."""
        now_s = self._clock.now_s()
        if now_s >= self._kv_tokens_due_s or not self._scheduler.pool.running:
            self._kv_tokens = self._scheduler.num_cached_tokens()
            self._kv_tokens_due_s = now_s + KV_TOKENS_EVERY_S
        return self._kv_tokens

    def _decide(self) -> IterationPlan:
        """A fault in the scheduler itself leaves its books in doubt: it is not caught."""
        plan = self._scheduler.schedule()
        for group, fault in self._scheduler.take_refused():
            self._requests.fail_inside(group, fault)
        if not self._requests.num_constrained:
            return plan
        assert self._masker is not None, "who accepts grammars has a masker"
        try:
            return with_masks(plan, self._scheduler.pool, self._masker)
        except Exception as fault:
            return replace(plan, masks=FailedMasks(fault))

    def _launch_next(self) -> bool:
        """Decide and launch an iteration; False if there is nothing to compute, or the launch has failed."""
        started_s = self._clock.now_s()
        self._launch_timing.launches(started_s, has_arrivals=bool(self._scheduler.pool.waiting))
        plan = self._decide()
        if plan.is_empty:
            return False
        scheduled_s = self._clock.now_s()
        self._batch_size = len(plan.scheduled)
        pending: PendingIteration
        try:
            pending = self._executor.launch(plan)
        except Exception as fault:  # told by `wait`, in its turn
            pending = _FailedLaunch(fault)
        tally = self._scheduler.take_tally()
        launched_s = self._clock.now_s()
        self._launch_timing.launched()
        self._launched.append(_Launched(plan, pending, tally, started_s, scheduled_s, launched_s))
        return not isinstance(pending, _FailedLaunch)

    def _complete(self, launched: _Launched) -> None:
        """Wait for the iteration and apply it."""
        started_s = self._clock.now_s()
        plan, was_done = launched.plan, launched.pending.is_done()
        try:
            result = launched.pending.wait()
        except Exception:
            logger.exception("an iteration of %d sequences failed", len(plan.scheduled))
            self.num_failed_in_a_row += 1
            self._launch_timing.lost()
            self._requests.lose(self._scheduler.finish_iteration().groups())
            if isinstance(launched.pending, _FailedLaunch):
                self._scheduler.release_again(plan.released)
            return
        executed_s = self._clock.now_s()
        whose = self._scheduler.finish_iteration()
        self._scheduler.finish_transfers(result.finished_transfers)
        device_s = executed_s - max(launched.scheduled_s, self._executed_s)
        # If a later one was launched meanwhile and this one was not waited for, it had ended at some time before.
        is_exact = not self._launched or (not was_done and executed_s - started_s > _NOTICEABLE_WAIT_S)
        idle_s = max(0.0, launched.scheduled_s - self._executed_s)
        put_off_s = self._launch_timing.ended(device_s, is_exact=is_exact)
        self._executed_s = executed_s
        try:
            self._scheduler.observe(plan, ExecutionTime(device_s, is_exact, result.compute_s, idle_s))
        except Exception:
            self._unmeasured.tell()
        num_failed = self._requests.num_failed
        tokens = self._applier.apply(plan, result, whose)
        if self.num_failed_in_a_row or self._requests.num_failed > num_failed:
            self._note_whether_failed()
        try:
            self._record(launched, tokens, started_s - put_off_s, executed_s, device_s, is_replayed=result.is_replayed)
        except Exception:
            self._unmeasured.tell()

    def _note_whether_failed(self) -> None:
        gave = self._applier.gave_something()
        if gave:
            self.num_failed_in_a_row = 0
        elif gave is False:
            self.num_failed_in_a_row += 1

    def _record(
        self,
        launched: _Launched,
        tokens: ProcessedTokens,
        wait_started_s: float,
        executed_s: float,
        device_s: float,
        *,
        is_replayed: bool,
    ) -> None:
        tally = launched.tally
        self._stats_sink.record_iteration(
            IterationStats(
                batch_size=len(launched.plan.scheduled),
                prompt_tokens=tokens.prompt,
                recomputed_tokens=tokens.recomputed,
                generated_tokens=tokens.generated,
                num_dropped=tally.num_dropped,
                num_swapped=tally.num_swapped,
                prefix_queried_tokens=tally.prefix_queried_tokens,
                prefix_hit_tokens=tally.prefix_hit_tokens,
                swapped_blocks=tally.swapped_blocks,
                schedule_s=launched.scheduled_s - launched.started_s,
                launch_s=launched.launched_s - launched.scheduled_s,
                wait_s=executed_s - wait_started_s,
                device_s=device_s,
                apply_s=self._clock.now_s() - executed_s,
                predictions=tally.predictions,
                token_gaps=self._applier.take_token_gaps(),
                is_replayed=is_replayed,
            )
        )


class _Launched(NamedTuple):
    """A launched iteration, and what its statistics will need. Seconds on the engine's clock."""

    plan: IterationPlan
    pending: PendingIteration
    tally: DecisionTally
    started_s: float
    scheduled_s: float
    launched_s: float


class _FailedLaunch:
    """A launch that failed: `wait` raises the fault in its turn, after the iterations before it."""

    def __init__(self, fault: Exception) -> None:
        self._fault = fault

    def is_done(self) -> bool:
        return True

    def wait(self) -> IterationResult:
        raise self._fault
