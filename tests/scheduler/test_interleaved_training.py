from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.prediction.device_heat import DeviceHeat
from service.prediction.iteration_time import IterationTime
from service.prediction.workload import Workload
from service.scheduler.interleaved_training import InterleavedTraining
from service.scheduler.training_turns import TRIED_AGAIN_AFTER_S
from tests.engine.scripted_training import ScriptedTraining
from tests.examples import examples
from tests.scheduler.training_play import ITERATION_S, TrainingPlay

EXACT = 1e-9


class KnownTime:
    """Predicts the same time for every iteration."""

    heat = DeviceHeat()

    def __init__(self, seconds: float | None = ITERATION_S) -> None:
        self._seconds = seconds

    def predicted_s(self, work: Workload) -> float | None:
        return self._seconds


def decode() -> IterationPlan:
    return IterationPlan((ScheduledSequence(0, 1, (1,), 5, 0, (), SamplingParams(9), (Sample(0, 0),)),))


@pytest.mark.parametrize(("predicted_s", "slack_s"), [(0.004, 0.016), (0.02, 0.0), (0.5, 0.0), (None, 0.0)])
def test_what_an_iteration_leaves_of_the_target_is_the_trainings(predicted_s: float | None, slack_s: float):
    assert InterleavedTraining(KnownTime(predicted_s), 0.02).slack_s(decode()) == pytest.approx(slack_s)


def test_before_the_predictor_knows_anything_there_is_no_slack():
    assert InterleavedTraining(IterationTime(), 0.02).slack_s(decode()) == 0.0


@settings(max_examples=examples(25), deadline=None)
@given(
    target_s=st.floats(0.005, 0.1),
    step_s=st.floats(1e-3, 0.03),
    num_steps=st.integers(1, 12),
    arrivals=st.lists(st.floats(0.1, 0.5), min_size=1, max_size=4),
    overlap=st.booleans(),
)
def test_no_gap_between_tokens_exceeds_the_target_for_a_training(
    target_s: float, step_s: float, num_steps: int, arrivals: list[float], overlap: bool
):
    """No request is deferred either: a new one waits only for the pieces in flight."""
    play = TrainingPlay(InterleavedTraining(KnownTime(), target_s), [step_s] * num_steps, overlap=overlap)
    for arrival_s in arrivals:
        play.arrive(arrival_s, num_tokens=12)
    served = play.run()
    gaps = [gap_s for stats in play.harness.sink.iterations for gap_s, _ in stats.token_gaps]
    assert max(gaps) <= max(target_s, ITERATION_S) + EXACT
    longest_s = max(4e-3, step_s, ITERATION_S)
    assert all(each.start_s - each.arrival_s <= 2 * longest_s + EXACT for each in served)
    assert not any("deferral" in each.reasons for each in served)
    assert play.training is not None
    beside = [at_s for at_s in play.training.began_s if served[0].start_s < at_s < served[0].end_s]
    if target_s - ITERATION_S >= step_s + EXACT:
        assert beside, "there was time for it"
    else:
        assert not beside or beside[-1] - beside[0] < longest_s, "a piece that was launched before, at most"


def test_a_training_gets_the_share_of_the_time_that_the_target_leaves():
    play = TrainingPlay(InterleavedTraining(KnownTime(), 0.0301), [0.002] * 10)
    play.arrive(0.5, num_tokens=50)
    (served,) = play.run()
    assert play.training is not None
    num_beside = sum(served.start_s < at_s < served.end_s for at_s in play.training.began_s)
    assert num_beside == pytest.approx(49 * 10, rel=0.05), "ten layer steps between two tokens"
    gaps = [gap_s for stats in play.harness.sink.iterations for gap_s, _ in stats.token_gaps]
    assert sorted(gaps)[len(gaps) // 2] == pytest.approx(0.03), "the time between tokens is told with what lay between"


def test_a_training_that_never_met_an_empty_batch_gets_its_first_step_all_the_same():
    """There is no estimate of its layer steps then."""
    play = TrainingPlay(InterleavedTraining(KnownTime(), 0.03), [])
    play.harness.add(play.harness.request((1, 2), 60))
    play.harness.engine.step()
    training = ScriptedTraining(play.clock, [0.004] * 10)
    play.harness.engine.training.start(training, play.listener)
    while not play.harness.finals:
        play.harness.step()
    assert training.num_done > 100


def test_an_estimate_that_is_far_too_long_does_not_starve_the_training():
    step_s = [0.5] + [0.004] * 9
    play = TrainingPlay(InterleavedTraining(KnownTime(), 0.03), [])
    play.harness.add(play.harness.request((1, 2), 150))
    play.harness.engine.step()
    training = ScriptedTraining(play.clock, step_s)
    play.harness.engine.training.start(training, play.listener)
    while not play.harness.finals:
        play.harness.step()
        play.clock.advance(0.2)
    num_long = -(-training.num_done // len(step_s))
    assert 3 <= num_long <= 3 + play.clock.now_s() / TRIED_AGAIN_AFTER_S


def test_what_runs_for_the_first_time_may_take_long_without_starving_the_training():
    """Because kernels are compiled."""
    play = TrainingPlay(InterleavedTraining(KnownTime(), 0.03), [])
    play.harness.add(play.harness.request((1, 2), 150))
    play.harness.engine.step()
    training = ScriptedTraining(play.clock, [0.004] * 40, first_run_s=[0.4, *[0.004] * 19, 0.3, *[0.004] * 18, 0.2])
    play.harness.engine.training.start(training, play.listener)
    while not play.harness.finals:
        play.harness.step()
    assert training.num_done > 200, "two of them fit between two tokens"


def test_who_comes_is_before_the_layer_steps_that_are_left_of_the_slack():
    play = TrainingPlay(InterleavedTraining(KnownTime(), 0.2), [0.002] * 10)
    play.arrive(0.5, num_tokens=10)
    play.arrive(0.5 + 3 * ITERATION_S, num_tokens=3)
    _, second = play.run()
    assert second.start_s - second.arrival_s <= max(4e-3, ITERATION_S) + EXACT
