from __future__ import annotations

from dataclasses import replace

import pytest

from service.core.iteration import IterationPlan, IterationResult
from service.prediction.calibration import calibrate
from service.prediction.iteration_time import IterationTime
from service.prediction.workload import Workload, num_attended_pairs
from tests.engine.late_executor import LateExecutor
from tests.manual_clock import ManualClock

VOCAB_SIZE = 50


class LinearExecutor(LateExecutor):
    """Takes a time that is known exactly."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.alive: set[int] = set()
        self.longest_table = 0

    def execute(self, plan: IterationPlan) -> IterationResult:
        self.alive -= set(plan.released)
        for item in plan.scheduled:
            self.alive.add(item.row)
            self.longest_table = max(self.longest_table, len(item.block_ids))
            pairs = num_attended_pairs(item.num_computed_tokens, len(item.token_ids))
            self._clock.advance(2e-5 * len(item.token_ids) + 1e-9 * pairs)
        self._clock.advance(0.004)
        return IterationResult(tuple(0 for item in plan.scheduled for _ in item.samples))


def calibrated(
    iteration_time: IterationTime, max_tokens: int, kind: type[LinearExecutor] = LinearExecutor
) -> LinearExecutor:
    """The executor by which it has been."""
    clock = ManualClock()
    executor = kind(clock)
    calibrate(
        executor.execute,
        iteration_time,
        clock,
        num_blocks=200,
        block_size=16,
        max_tokens=max_tokens,
        max_model_len=2048,
        max_num_seqs=64,
        vocab_size=VOCAB_SIZE,
    )
    return executor


def test_the_predictor_is_right_after_calibration_and_nothing_is_left_behind():
    iteration_time = IterationTime()
    executor = calibrated(iteration_time, max_tokens=1024)
    assert executor.alive == set()
    assert executor.longest_table <= 200
    expected = 0.004 + 2e-5 * 700 + 1e-9 * num_attended_pairs(0, 700)
    assert iteration_time.predicted_s(Workload.of_chunk(0, 700)) == pytest.approx(expected, rel=1e-3)


class WithClock(LinearExecutor):
    """A device that has a clock, under a host that takes its time."""

    def execute(self, plan: IterationPlan) -> IterationResult:
        began_s = self._clock.now_s()
        result = super().execute(plan)
        compute_s = self._clock.now_s() - began_s
        self._clock.advance(1e-3)
        return replace(result, compute_s=compute_s)


def test_the_devices_own_clock_counts_where_there_is_one():
    iteration_time = IterationTime()
    calibrated(iteration_time, max_tokens=1024, kind=WithClock)
    expected = 0.004 + 2e-5 * 700 + 1e-9 * num_attended_pairs(0, 700)
    assert iteration_time.predicted_s(Workload.of_chunk(0, 700)) == pytest.approx(expected, rel=1e-3)


LOWERED_S = 0.0012


class Throttled(LinearExecutor):
    """A device that takes longer for a while after it has computed much."""

    hot_until_s = 0.0

    def execute(self, plan: IterationPlan) -> IterationResult:
        if self._clock.now_s() < self.hot_until_s and plan.scheduled:
            self._clock.advance(LOWERED_S)
        result = super().execute(plan)
        if plan.num_scheduled_tokens > len(plan.scheduled):
            self.hot_until_s = self._clock.now_s() + 0.01 * plan.num_scheduled_tokens / 1024
        return result


class ThrottledWithClock(WithClock, Throttled):
    pass


def test_the_time_of_a_device_that_has_rested_is_known_from_one_that_hardly_has():
    iteration_time = IterationTime()
    calibrated(iteration_time, max_tokens=1024, kind=ThrottledWithClock)
    for length in (300, 700, 1000):
        expected = 0.004 + 2e-5 * length + 1e-9 * num_attended_pairs(0, length)
        assert iteration_time.predicted_s(Workload.of_chunk(0, length)) == pytest.approx(expected, rel=0.02)
    assert iteration_time.predicted_s(Workload.of_chunk(0, 300, heat=0.4)) > 1.02 * iteration_time.predicted_s(
        Workload.of_chunk(0, 300)
    )


def test_ids_differ_and_are_the_vocabularys():
    plans = list[IterationPlan]()

    class Watched(LinearExecutor):
        def execute(self, plan: IterationPlan) -> IterationResult:
            plans.append(plan)
            return super().execute(plan)

    calibrated(IterationTime(), max_tokens=1024, kind=Watched)
    ids = [token_id for plan in plans for item in plan.scheduled for token_id in item.token_ids]
    assert set(ids) == set(range(VOCAB_SIZE))


def test_every_large_size_is_timed_as_one_prompt_and_as_several():
    iteration_time = WatchedTime(lambda num_tokens, num_decodes, num_prompts: (-(-num_tokens // 256) * 256, 0))
    calibrated(iteration_time, max_tokens=1024)
    assert {(size, count) for size in (512, 768, 1024) for count in (1, size // 256)} <= iteration_time.prompts


class WatchedTime(IterationTime):
    """Keeps which numbers of tokens were timed, and of prompts with them."""

    timed: tuple[int, ...] = ()
    prompts: frozenset[tuple[int, int]] = frozenset()

    def calibrate(self, workload: Workload, seconds: float) -> None:
        super().calibrate(workload, seconds)
        self.timed += (workload.num_tokens,)
        self.prompts |= {(workload.num_tokens, workload.num_prompts)}


def test_every_size_that_is_padded_to_is_timed():
    iteration_time = WatchedTime(lambda num_tokens, num_decodes, num_prompts: (-(-num_tokens // 96) * 96, 0))
    calibrated(iteration_time, max_tokens=400)
    assert {96, 192, 288, 384, 400, 200} <= set(iteration_time.timed)
    assert max(iteration_time.timed) == 400


NEW_SEQUENCE_S = 4e-5


class TakingUp(LinearExecutor):
    """Every sequence that it has not seen costs the host time."""

    def execute(self, plan: IterationPlan) -> IterationResult:
        self._clock.advance(NEW_SEQUENCE_S * sum(item.row not in self.alive for item in plan.scheduled))
        return super().execute(plan)


def test_prompts_are_taken_up_and_decodes_are_there_already():
    clock, iteration_time = ManualClock(), IterationTime()
    calibrate(
        TakingUp(clock).execute,
        iteration_time,
        clock,
        num_blocks=200,
        block_size=16,
        max_tokens=1024,
        max_model_len=2048,
        max_num_seqs=64,
        vocab_size=VOCAB_SIZE,
    )
    decodes = Workload(60, 0, 60 * 100, 0, 60, 0)
    assert iteration_time.predicted_s(decodes) == pytest.approx(0.004 + 60 * (2e-5 + 100e-9), rel=0.02)
    burst = Workload(30 * 16, 30 * num_attended_pairs(0, 16), 0, 16, 0, 30)
    taken = 0.004 + 30 * (16 * 2e-5 + NEW_SEQUENCE_S)
    assert iteration_time.predicted_s(burst) == pytest.approx(taken, rel=0.02)


@pytest.mark.parametrize("max_num_seqs", [1, 2, 5])
def test_no_plan_has_more_sequences_or_tokens_than_there_is_room_for(max_num_seqs: int):
    clock, plans = ManualClock(), list[IterationPlan]()

    class Watched(LinearExecutor):
        def execute(self, plan: IterationPlan) -> IterationResult:
            plans.append(plan)
            return super().execute(plan)

    calibrate(
        Watched(clock).execute,
        IterationTime(),
        clock,
        num_blocks=8,
        block_size=4,
        max_tokens=20,
        max_model_len=64,
        max_num_seqs=max_num_seqs,
        vocab_size=VOCAB_SIZE,
    )
    assert max(len(plan.scheduled) for plan in plans) <= max_num_seqs
    assert max(plan.num_scheduled_tokens for plan in plans) == 20
    for plan in plans:
        assert len({item.sequence_id for item in plan.scheduled}) == len(plan.scheduled)
