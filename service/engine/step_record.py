"""Measurements around the step: durations, when to launch the next iteration, statistics.

Nothing here changes a request. A fault in a measurement loses that measurement and nothing else. Engine thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from service.core.clock import Clock
from service.core.iteration import IterationPlan, IterationResult
from service.core.rare_warning import RareWarning
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.core.stats import IterationStats
from service.engine.ports import PendingIteration, StatsSink
from service.prediction.execution_time import ExecutionTime
from service.prediction.launch_timing import IterationKind, LaunchTiming
from service.prediction.recovery_ledger import RecoveryLedger
from service.scheduler.decision_tally import DecisionTally

logger = logging.getLogger(__name__)

_NOTICEABLE_WAIT_S = 2e-4
"""A wait longer than this means that the result was not ready: fetching a ready one takes less."""


class Launched(NamedTuple):
    """A launched iteration, with what its statistics need later. On the engine's clock: started_s: the decision began;
    scheduled_s: the decision was made; launched_s: the launch was done."""

    plan: IterationPlan
    pending: PendingIteration
    tally: DecisionTally
    started_s: float
    scheduled_s: float
    launched_s: float


class Executed(NamedTuple):
    """wait_started_s: when the wait for the result began, shifted back by the delay of the next launch. executed_s:
    when the result was there. device_s: for how long the iteration had the device."""

    wait_started_s: float
    executed_s: float
    device_s: float


class ProcessedTokens:
    """Counts of the tokens that an iteration computed and drew, and the time since each request's previous token.
    now_s: when its result came.

    generated: drawn. prompt: prompt tokens computed for the first time. recomputed: computed again after a preemption.
    drafts: as in IterationStats.
    """

    __slots__ = ("_now_s", "_num_since", "drafts", "generated", "prompt", "recomputed")

    def __init__(self, now_s: float) -> None:
        self.generated = 0
        self.prompt = 0
        self.recomputed = 0
        self.drafts: list[tuple[int, int]] = []
        self._now_s = now_s
        # Time of the previous token -> number of requests: those that decode together had it at the same moment.
        self._num_since: dict[float, int] = {}

    def add(self, sequence: Sequence, start: int, end: int, num_drawn: int) -> None:
        """Tokens at positions start, ..., end - 1 of the sequence were computed."""
        fresh = max(start, sequence.recompute_until)
        self.generated += num_drawn
        self.recomputed += max(0, min(end, sequence.recompute_until) - start)
        self.prompt += max(0, min(end, sequence.num_prompt_tokens) - fresh)

    def note_gap(self, group: SequenceGroup) -> None:
        """A token of the group was drawn. However many choices call this, the gap counts once per iteration."""
        last_s, group.last_token_s = group.last_token_s, self._now_s
        if last_s is not None and last_s != self._now_s:
            self._count(last_s, 1)

    def add_decodes(self, num_tokens: int, last_s: float) -> None:
        """`num_tokens` tokens of the decode batch were drawn; the previous ones came at `last_s`."""
        self.generated += num_tokens
        if num_tokens:
            self._count(last_s, num_tokens)

    def gaps(self) -> tuple[tuple[float, int], ...]:
        """`IterationStats.token_gaps`, from which inter-token latency is computed."""
        return tuple((self._now_s - since_s, count) for since_s, count in self._num_since.items())

    def _count(self, last_s: float, num_gaps: int) -> None:
        self._num_since[last_s] = self._num_since.get(last_s, 0) + num_gaps


class StepRecord:
    """Call per iteration, in this order: `launches`, `launched`, `executed`, `applied`; after a failure `lost` in place
    of the last two. An iteration of a training has no `applied`, since it has its own statistics.

    predicted_s: predicts the seconds of the oldest plan in flight.
    """

    def __init__(
        self,
        ledger: RecoveryLedger,
        stats_sink: StatsSink,
        clock: Clock,
        predicted_s: Callable[[IterationPlan], float | None],
    ) -> None:
        self._ledger = ledger
        self._predict_s = predicted_s
        self._stats_sink = stats_sink
        self._clock = clock
        self._launch_timing = LaunchTiming()
        self._unmeasured = RareWarning(logger, "measurements of iterations were lost: %d", of_fault=True)
        self._executed_s = 0.0

    def spare_s(self, running: Launched, *, has_arrivals: bool) -> float:
        """Seconds by which the launch after `running`, the only iteration in flight, may be delayed."""
        now_s = self._clock.now_s()
        if not self._launch_timing.is_timing:
            predicted_s = self._predicted_s(running.plan)
            if predicted_s is None:
                return 0.0
            self._launch_timing.runs(max(running.scheduled_s, self._executed_s), predicted_s, _kind(running.plan))
        spare_s = self._launch_timing.spare_s(now_s, has_arrivals=has_arrivals)
        return 0.0 if spare_s > 0.0 and running.pending.is_done() else spare_s

    def launches(self, *, has_arrivals: bool) -> float:
        """The next iteration is about to be decided. Returns the present time."""
        now_s = self._clock.now_s()
        self._launch_timing.launches(now_s, has_arrivals=has_arrivals)
        return now_s

    def launched(
        self,
        plan: IterationPlan,
        pending: PendingIteration,
        tally: DecisionTally,
        started_s: float,
        scheduled_s: float,
    ) -> Launched:
        self._launch_timing.launched()
        return Launched(plan, pending, tally, started_s, scheduled_s, self._clock.now_s())

    def lost(self) -> None:
        """An iteration failed: its duration must not be learned from."""
        self._launch_timing.lost()

    def executed(
        self, launched: Launched, result: IterationResult, wait_started_s: float, *, was_done: bool, is_last: bool
    ) -> Executed:
        """The result is there. was_done: it was there before the wait began. is_last: nothing was launched after it."""
        executed_s = self._clock.now_s()
        device_s = executed_s - max(launched.scheduled_s, self._executed_s)
        # If a later one is launched and we did not wait for this one, its exact end is unknown.
        is_exact = is_last or (not was_done and executed_s - wait_started_s > _NOTICEABLE_WAIT_S)
        idle_s = max(0.0, launched.scheduled_s - self._executed_s)
        delayed_s = self._launch_timing.ended(device_s, is_exact=is_exact)
        self._executed_s = executed_s
        try:
            self._ledger.executed(launched.plan, ExecutionTime(device_s, is_exact, result.compute_s, idle_s))
        except Exception:  # of a predictor that learns: no token depends on it
            self._unmeasured.tell()
        return Executed(wait_started_s - delayed_s, executed_s, device_s)

    def applied(
        self,
        launched: Launched,
        result: IterationResult,
        executed: Executed,
        tokens: ProcessedTokens,
    ) -> None:
        """The result has been applied to the requests: record the statistics."""
        try:
            self._stats_sink.record_iteration(self._stats(launched, result, executed, tokens))
        except Exception:  # the events are out; only these figures are lost
            self._unmeasured.tell()

    def _stats(
        self, launched: Launched, result: IterationResult, executed: Executed, tokens: ProcessedTokens
    ) -> IterationStats:
        tally = launched.tally
        return IterationStats(
            batch_size=launched.plan.num_sequences - launched.plan.num_drafts,
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
            wait_s=executed.executed_s - executed.wait_started_s,
            device_s=executed.device_s,
            apply_s=self._clock.now_s() - executed.executed_s,
            predictions=tally.predictions,
            token_gaps=tokens.gaps(),
            is_replayed=result.is_replayed,
            num_adapter_loads=tally.num_adapter_loads,
            num_adapter_evictions=tally.num_adapter_evictions,
            num_arena_returns=tally.num_arena_returns,
            num_micro_batches_lost=tally.num_micro_batches_lost,
            deferrals=tuple(tally.deferrals),
            drafts=tuple(tokens.drafts),
        )

    def _predicted_s(self, plan: IterationPlan) -> float | None:
        """None also if the predictor raises."""
        try:
            return self._predict_s(plan)
        except Exception:  # then the launch is not delayed
            self._unmeasured.tell()
            return None


def _kind(plan: IterationPlan) -> IterationKind:
    if plan.training is not None:
        return "training"
    return "prompts" if plan.num_scheduled_tokens > plan.num_sequences else "decodes"
