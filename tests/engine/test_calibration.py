from __future__ import annotations

import pytest

from service.core.clock import ManualClock
from service.core.iteration_plan import IterationPlan
from service.core.iteration_result import IterationResult
from service.engine.calibration import calibrate
from service.scheduler.iteration_time import IterationTime, Workload, num_attended_pairs
from tests.engine.late_executor import LateExecutor


class LinearExecutor(LateExecutor):
    """Takes a time that is known exactly."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.alive: set[int] = set()
        self.longest_table = 0

    def execute(self, plan: IterationPlan) -> IterationResult:
        self.alive -= set(plan.released)
        for item in plan.scheduled:
            self.alive.add(item.sequence_id)
            self.longest_table = max(self.longest_table, len(item.block_ids))
            pairs = num_attended_pairs(item.num_computed_tokens, len(item.token_ids))
            self._clock.advance(2e-5 * len(item.token_ids) + 1e-9 * pairs)
        self._clock.advance(0.004)
        return IterationResult(tuple(0 for item in plan.scheduled for _ in item.samples))


def calibrated(iteration_time: IterationTime, max_tokens: int) -> LinearExecutor:
    """The executor by which it has been."""
    clock = ManualClock()
    executor = LinearExecutor(clock)
    calibrate(
        executor,
        iteration_time,
        clock,
        num_blocks=200,
        block_size=16,
        max_tokens=max_tokens,
        max_model_len=2048,
        max_num_seqs=64,
    )
    return executor


def test_the_predictor_is_right_after_calibration_and_nothing_is_left_behind():
    iteration_time = IterationTime()
    executor = calibrated(iteration_time, max_tokens=1024)
    assert executor.alive == set()
    assert executor.longest_table <= 200
    expected = 0.004 + 2e-5 * 700 + 1e-9 * num_attended_pairs(0, 700)
    assert iteration_time.seconds(Workload.of_chunk(0, 700)) == pytest.approx(expected, rel=1e-3)


class WatchedTime(IterationTime):
    """Keeps which numbers of tokens were timed."""

    timed: tuple[int, ...] = ()

    def calibrate(self, workload: Workload, seconds: float) -> None:
        super().calibrate(workload, seconds)
        self.timed += (workload.num_tokens,)


def test_every_size_that_is_padded_to_is_timed():
    iteration_time = WatchedTime(lambda num_tokens, num_decodes, num_prompts: (-(-num_tokens // 96) * 96, 0))
    calibrated(iteration_time, max_tokens=400)
    assert {96, 192, 288, 384, 400, 200} <= set(iteration_time.timed)
    assert max(iteration_time.timed) == 400
