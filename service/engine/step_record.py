"""What stands beside the step: how long its iterations take, when the next is to be launched, and their statistics.

Nothing here changes a request. What goes wrong with a measurement costs that measurement alone. Engine thread only.
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
"""Longer than fetching a result that is there."""


class Launched(NamedTuple):
    """A launched iteration, and what its statistics will need. Seconds on the engine's clock: when it was begun to be
    decided, when it was decided, and when it was launched."""

    plan: IterationPlan
    pending: PendingIteration
    tally: DecisionTally
    started_s: float
    scheduled_s: float
    launched_s: float


class Executed(NamedTuple):
    """When the wait for an iteration began, without the time by which the launch behind it was delayed, when its result
    was there, and for how long it had the device."""

    wait_started_s: float
    executed_s: float
    device_s: float


class ProcessedTokens:
    """What an iteration has computed and drawn, by kind, and how long each request had waited for its token. Its result
    came at `now_s`.

    generated: drawn. prompt: computed for the first time. recomputed: computed again, after a preemption. drafts: as of
    IterationStats.
    """

    __slots__ = ("_now_s", "_num_since", "drafts", "generated", "prompt", "recomputed")

    def __init__(self, now_s: float) -> None:
        self.generated = 0
        self.prompt = 0
        self.recomputed = 0
        self.drafts: list[tuple[int, int]] = []
        self._now_s = now_s
        # Requests that decode side by side had their last tokens at the same moment: one entry stands for many.
        self._num_since: dict[float, int] = {}

    def add(self, sequence: Sequence, start: int, end: int, num_drawn: int) -> None:
        """Tokens `start` to `end` of the sequence were computed."""
        fresh = max(start, sequence.recompute_until)
        self.generated += num_drawn
        self.recomputed += max(0, min(end, sequence.recompute_until) - start)
        self.prompt += max(0, min(end, sequence.num_prompt_tokens) - fresh)

    def note_gap(self, group: SequenceGroup) -> None:
        """A token of the group was drawn. Called for each of its choices, it counts once: their tokens come side by
        side."""
        last_s, group.last_token_s = group.last_token_s, self._now_s
        if last_s is not None and last_s != self._now_s:
            self._count(last_s, 1)

    def add_decodes(self, num_tokens: int, last_s: float) -> None:
        """So many tokens of the decode batch were drawn; those before them came at `last_s`."""
        self.generated += num_tokens
        if num_tokens:
            self._count(last_s, num_tokens)

    def gaps(self) -> tuple[tuple[float, int], ...]:
        """`IterationStats.token_gaps`: what inter-token latency is made of."""
        return tuple((self._now_s - since_s, count) for since_s, count in self._num_since.items())

    def _count(self, last_s: float, num_gaps: int) -> None:
        self._num_since[last_s] = self._num_since.get(last_s, 0) + num_gaps


class StepRecord:
    """For each iteration in turn: `launches`, `launched`, `executed`, `applied`; or `lost` in place of the last two.
    One of a training is not `applied`: its statistics are its own.

    predicted_s: of the oldest plan that runs.
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
        self._unmeasured = RareWarning(logger, "the measurements of iterations were lost, so many: %d", of_fault=True)
        self._executed_s = 0.0

    def spare_s(self, running: Launched, *, has_arrivals: bool) -> float:
        """Seconds by which the launch behind this iteration, which alone runs, may be delayed."""
        now_s = self._clock.now_s()
        if not self._launch_timing.is_timing:
            predicted_s = self._predicted_s(running.plan)
            if predicted_s is None:
                return 0.0
            self._launch_timing.runs(max(running.scheduled_s, self._executed_s), predicted_s, _kind(running.plan))
        spare_s = self._launch_timing.spare_s(now_s, has_arrivals=has_arrivals)
        return 0.0 if spare_s > 0.0 and running.pending.is_done() else spare_s

    def launches(self, *, has_arrivals: bool) -> float:
        """The next iteration is going to be decided; returns when."""
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
        """An iteration failed: how long it took says nothing."""
        self._launch_timing.lost()

    def executed(
        self, launched: Launched, result: IterationResult, wait_started_s: float, *, was_done: bool, is_last: bool
    ) -> Executed:
        """The result is there. was_done: before the wait for it began. is_last: no later iteration is launched."""
        executed_s = self._clock.now_s()
        device_s = executed_s - max(launched.scheduled_s, self._executed_s)
        # If a later one was launched meanwhile and this one was not waited for, it had ended at some time before.
        is_exact = is_last or (not was_done and executed_s - wait_started_s > _NOTICEABLE_WAIT_S)
        idle_s = max(0.0, launched.scheduled_s - self._executed_s)
        delayed_s = self._launch_timing.ended(device_s, is_exact=is_exact)
        self._executed_s = executed_s
        try:
            self._ledger.executed(launched.plan, ExecutionTime(device_s, is_exact, result.compute_s, idle_s))
        except Exception:  # of a predictor that learns: nobody's tokens hang on it
            self._unmeasured.tell()
        return Executed(wait_started_s - delayed_s, executed_s, device_s)

    def applied(
        self,
        launched: Launched,
        result: IterationResult,
        executed: Executed,
        tokens: ProcessedTokens,
    ) -> None:
        """The result is the requests' now."""
        try:
            self._stats_sink.record_iteration(self._stats(launched, result, executed, tokens))
        except Exception:  # the tokens are told already, and the figures are lost
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
        """A fault of the predictor is one more reason not to know."""
        try:
            return self._predict_s(plan)
        except Exception:  # the launch is then not delayed
            self._unmeasured.tell()
            return None


def _kind(plan: IterationPlan) -> IterationKind:
    if plan.training is not None:
        return "training"
    return "prompts" if plan.num_scheduled_tokens > plan.num_sequences else "decodes"
