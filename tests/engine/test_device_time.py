"""When the device worked on an iteration, as the engine reports it to the predictor and the metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.core.iteration import IterationPlan, IterationResult
from service.prediction.iteration_time import IterationTime
from service.prediction.workload import Workload
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.late_executor import MaybeDone
from tests.engine.toy_model import ToyExecutor
from tests.examples import examples
from tests.manual_clock import ManualClock


class SlowExecutor(ToyExecutor):
    """Each iteration takes one second of device time, one after another."""

    clock: ManualClock

    def execute(self, plan):
        self.clock.advance(1.0)
        return super().execute(plan)


@pytest.mark.parametrize("overlap", [False, True])
def test_an_iteration_takes_the_device_from_when_the_one_before_has_left_it(overlap):
    executor = SlowExecutor(64, 4, VOCABULARY)
    harness = Harness(executor=executor, overlap=overlap)
    executor.clock = harness.clock
    harness.add(harness.request((1, 2), 6))
    harness.run()
    assert [stats.device_s for stats in harness.sink.iterations] == pytest.approx([1.0] * 6, abs=0.03)


class SlowDevice(ToyExecutor):
    """done False: waiting for a result takes `wait_s`. done True: the results are there, and only fetching takes it."""

    def __init__(self, clock: ManualClock, wait_s: float, *, done: bool) -> None:
        super().__init__(64, 4, VOCABULARY)
        self._clock, self._wait_s, self._done = clock, wait_s, done

    def launch(self, plan: IterationPlan) -> MaybeDone:
        return MaybeDone(self, self.expand(plan), self._done)

    def execute(self, plan: IterationPlan) -> IterationResult:
        self._clock.advance(self._wait_s)
        return super().execute(plan)


ENDS = [(True, 0.05, False, True), (True, 0.0, False, False), (True, 0.05, True, False), (False, 0.0, True, True)]


@pytest.mark.parametrize(("overlap", "wait_s", "done", "learns"), ENDS)
def test_iterations_whose_end_was_not_seen_teach_nothing(overlap: bool, wait_s: float, done: bool, learns: bool):
    clock = ManualClock()
    harness = Harness(executor=SlowDevice(clock, wait_s, done=done), overlap=overlap, clock=clock)
    assert harness.add(harness.request((1, 2, 3), 200))
    for seed in range(examples(20)):
        harness.add(harness.request(tuple(range(seed, seed + 6)), 6, seed=seed))
    harness.run()
    harness.cost.iteration_time.fit()
    assert (harness.cost.iteration_time.predicted_s(Workload.of_chunk(0, 6)) is not None) is learns


class WatchedTime(IterationTime):
    """Records the device's heat at each observed iteration."""

    heats: tuple[float, ...] = ()

    def observe(self, workload: Workload, seconds: float, *, is_decode: bool) -> None:
        super().observe(workload, seconds, is_decode=is_decode)
        self.heats += (workload.heat,)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_predictor_hears_how_long_the_device_had_nothing_to_do(overlap: bool):
    class WithClock(ToyExecutor):
        """Half a second per iteration, by its own clock too."""

        def execute(self, plan: IterationPlan) -> IterationResult:
            harness.clock.advance(0.5)
            return replace(super().execute(plan), compute_s=0.5 if plan.scheduled else None)

    harness = Harness(executor=WithClock(64, 4, VOCABULARY), overlap=overlap)
    harness.cost.iteration_time = watched = WatchedTime()
    watched.heat.decoded(0.1)
    for first_id, idle_s in ((0, 0), (16, 0), (32, 60)):
        harness.clock.advance(idle_s)
        harness.add(harness.request(tuple(range(first_id, first_id + 16)), 1))
        harness.run()
    first, at_once, behind_a_rest = watched.heats
    assert at_once > 0.4, "a step of the harness rests 0.01 s"
    assert first == behind_a_rest == pytest.approx(0, abs=1e-6)
