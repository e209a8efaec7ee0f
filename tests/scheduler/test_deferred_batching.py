from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.iteration import IterationPlan
from service.scheduler.deferred_batching import DeferredBatching
from service.scheduler.training_turns import PIECE_S
from tests.examples import examples
from tests.scheduler.training_play import ITERATION_S, TrainingPlay

arrivals = st.lists(st.floats(0.1, 1.0), min_size=1, max_size=8)
steps = st.tuples(st.floats(1e-3, 0.05), st.integers(1, 12)).map(lambda pair: [pair[0]] * pair[1])
EXACT = 1e-9


@pytest.mark.parametrize(
    ("waited_s", "step_s", "bound_s", "is_admitted"),
    [
        (0.0, 0.2, 1.0, False),
        (0.7, 0.2, 1.0, False),
        (0.81, 0.2, 1.0, True),
        (0.0, 1.01, 1.0, True),
        (0.0, 1e-6, 0.0, True),
        (1e9, 1e9, math.inf, False),
        (0.0, math.inf, 10.0, True),
        (0.0, math.inf, math.inf, False),
    ],
)
def test_fineinfers_rule(waited_s: float, step_s: float, bound_s: float, is_admitted: bool):
    assert DeferredBatching(bound_s).admits(waited_s, step_s) is is_admitted


def test_nothing_of_a_running_batchs_time_is_the_trainings():
    assert DeferredBatching(1.0).slack_s(IterationPlan(())) == 0.0


@settings(max_examples=examples(20), deadline=None)
@given(arrivals=arrivals, overlap=st.booleans())
def test_without_a_training_nothing_is_deferred(arrivals: list[float], overlap: bool):
    play = TrainingPlay(DeferredBatching(math.inf), [], overlap=overlap)
    for arrival_s in arrivals:
        play.arrive(arrival_s)
    for served in play.run():
        assert served.start_s - served.arrival_s <= 2 * ITERATION_S + 2e-6
        assert "deferral" not in served.reasons
    assert not any(stats.deferrals for stats in play.harness.sink.iterations)


@settings(max_examples=examples(40), deadline=None)
@given(arrivals=arrivals, steps=steps, bound_s=st.sampled_from([0.0, 0.05, 0.25, 0.5, 1.0]), overlap=st.booleans())
def test_with_exact_estimates_nobody_waits_beyond_the_bound_or_the_running_pieces(
    arrivals: list[float], steps: list[float], bound_s: float, overlap: bool
):
    """With two iterations in flight, the decision to start a request comes after both."""
    play = TrainingPlay(DeferredBatching(bound_s), steps, overlap=overlap)
    for arrival_s in arrivals:
        play.arrive(arrival_s)
    piece_s = max(PIECE_S, steps[0])
    running_s = 2 * max(piece_s, ITERATION_S) if overlap else max(piece_s, ITERATION_S)
    served = play.run()
    for each in served:
        assert each.start_s - each.arrival_s <= max(bound_s, running_s) + EXACT
    starts = [each.start_s for each in served]
    assert starts == sorted(starts), "first come, first served"
    play.harness.check_against_oracle("request-0")
    assert play.training is not None
    assert play.training.num_done > 0


@settings(max_examples=examples(20), deadline=None)
@given(arrivals=arrivals, steps=steps, bound_s=st.sampled_from([0.0, 0.05, 0.5]))
def test_with_stages_a_piece_begins_once_the_one_before_is_done(
    arrivals: list[float], steps: list[float], bound_s: float
):
    """Several batches are in flight, but never two pieces: a new request waits for one piece, or up to the bound."""
    play = TrainingPlay(DeferredBatching(bound_s), steps, num_lanes=2)
    turns = play.harness.engine.scheduler.training
    take, most = turns.take, []

    def taking(num_steps: int, now_s: float) -> object:
        most.append(len(turns._pieces))
        return take(num_steps, now_s)

    turns.take = taking
    for arrival_s in arrivals:
        play.arrive(arrival_s)
    for each in play.run():
        assert each.start_s - each.arrival_s <= max(bound_s, PIECE_S, steps[0], 2 * ITERATION_S) + EXACT
    assert play.training is not None
    assert play.training.num_done > 0
    assert set(most) == {0}


@settings(max_examples=examples(60), deadline=None)
@given(arrival_s=st.floats(0.2, 1.0), steps=steps, bound_s=st.floats(0.0, 1.0))
def test_who_finds_the_batch_empty_waits_for_the_iteration_if_that_ends_in_time_else_for_the_piece(
    arrival_s: float, steps: list[float], bound_s: float
):
    play = TrainingPlay(DeferredBatching(bound_s), steps)
    play.arrive(arrival_s)
    (served,) = play.run()
    assert play.training is not None
    step_s, num_steps = steps[0], len(steps)
    before = [number for number, began_s in enumerate(play.training.began_s) if began_s < served.start_s - EXACT]
    ended_s = play.training.began_s[before[-1]] + step_s
    assert served.start_s == pytest.approx(ended_s), "as soon as the last layer step before it has ended"
    num_left = -(before[-1] + 1) % num_steps or num_steps
    waited_s = served.start_s - served.arrival_s
    assert waited_s + num_left * step_s > bound_s - EXACT, "for the bound's sake"
    longest_s = max(step_s, PIECE_S)
    if num_left < num_steps and waited_s > longest_s + EXACT:
        pytest.fail("a wait for an iteration that is not completed is for nothing")


def test_newcomers_join_a_running_batch_at_once():
    play = TrainingPlay(DeferredBatching(1.0), [0.1] * 4)
    play.arrive(1.0, num_tokens=50)
    play.arrive(2.0)
    first, second = play.run()
    assert first.start_s <= 2.0 < first.end_s
    assert second.start_s - second.arrival_s <= ITERATION_S + EXACT


def test_who_waits_comes_in_one_batch_with_the_first():
    play = TrainingPlay(DeferredBatching(0.5), [0.01] * 10)
    for arrival_s in (1.0, 1.1, 1.2, 1.3):
        play.arrive(arrival_s)
    assert len({served.start_s for served in play.run()}) == 1


def test_inference_first_waits_for_the_running_layer_step_alone():
    play = TrainingPlay(DeferredBatching(0.0), [0.02] * 50)
    play.arrive(1.005)
    (served,) = play.run()
    assert served.start_s == pytest.approx(1.02)
    assert served.reasons == ("iteration",)


def test_the_job_first_lets_nobody_start_before_its_end():
    play = TrainingPlay(DeferredBatching(math.inf), [0.02] * 5, num_iterations=20)
    for arrival_s in (0.1, 0.5, 2.5):
        play.arrive(arrival_s)
    served = play.run()
    assert [each.start_s for each in served] == pytest.approx([2.0, 2.0, 2.5], abs=1e-5)
    assert [each.reasons for each in served] == [("deferral",), ("deferral",), ("iteration",)]
    assert play.listener.ends == [None]


def test_who_has_run_before_waits_for_no_training():
    """Two requests fill the memory, and the younger is preempted. When the older ends, only the training runs."""
    play = TrainingPlay(DeferredBatching(math.inf), [], num_blocks=8)
    harness = play.harness
    for _ in range(2):
        harness.add(harness.request((1, 2, 3, 4, 5), 18))
    while not harness.scheduler.pool.preempted:
        harness.step()
    training_play = TrainingPlay(DeferredBatching(math.inf), [0.1])
    assert training_play.training is not None
    harness.engine.training.start(training_play.training, training_play.listener)
    while len(harness.finals) < 2:
        harness.step()
    assert training_play.training.num_done == 0
    for request_id in ("request-0", "request-1"):
        harness.check_against_oracle(request_id)


def test_what_is_deferred_is_counted_by_its_cause():
    play = TrainingPlay(DeferredBatching(0.5), [0.1])
    play.arrive(1.05)  # looked at behind the step, and again until the bound would be passed
    play.arrive(1.49)  # comes while the last step runs
    play.run()
    deferrals = [deferral for stats in play.harness.sink.iterations for deferral in stats.deferrals]
    assert sorted(cause for cause, _ in deferrals) == ["bound", "piece"]
    seconds = dict(deferrals)
    assert seconds["bound"] == pytest.approx(0.45)
    assert seconds["piece"] == pytest.approx(0.01)
