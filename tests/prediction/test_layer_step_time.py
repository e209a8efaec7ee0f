from __future__ import annotations

import math
import random

import pytest

from service.prediction.layer_step_time import LayerStepTime


def test_before_anything_was_measured_nothing_is_known():
    times = LayerStepTime(4)
    assert times.predicted_s(0, 4) is None
    assert times.num_within(1.0, 0, 4) == 0


def test_the_first_piece_tells_of_all_steps():
    times = LayerStepTime(4)
    times.observe(0, 2, 0.2)
    assert times.predicted_s(1, 3) == pytest.approx(0.3)


@pytest.mark.parametrize("slow", [0, 2, 5])
def test_a_first_run_that_compiles_kernels_says_nothing_of_the_next(slow: int):
    times = LayerStepTime(6)
    for iteration in range(2):
        for step in range(6):
            times.observe(step, 1, 0.5 if (step, iteration) == (slow, 0) else 0.004)
    assert [times.predicted_s(step, 1) for step in range(6)] == pytest.approx([0.004] * 6)


def test_a_step_that_never_ran_is_taken_for_the_shortest():
    times = LayerStepTime(4)
    times.observe(0, 1, 0.5)
    times.observe(1, 1, 0.004)
    assert times.predicted_s(2, 2) == pytest.approx(0.008)


def test_pieces_with_changing_borders_tell_the_steps_apart():
    seconds = [0.001] * 8 + [0.009] + [0.002] * 8 + [0.02]
    chance, times = random.Random(0), LayerStepTime(len(seconds))
    for _ in range(300):
        start = 0
        while start < len(seconds):
            num_steps = min(chance.randint(1, 4), len(seconds) - start)
            times.observe(start, num_steps, sum(seconds[start : start + num_steps]))
            start += num_steps
    assert [times.predicted_s(step, 1) for step in range(len(seconds))] == pytest.approx(seconds, rel=0.02)
    assert times.predicted_s(0, len(seconds)) == pytest.approx(sum(seconds), rel=0.01)


def test_an_iteration_of_more_tokens_than_others_is_known_by_its_first_pieces():
    usual_s = [0.005] * 6 + [0.01] * 7
    chance, times, errors = random.Random(0), LayerStepTime(len(usual_s)), list[float]()
    for iteration in range(200):
        longer = math.exp(chance.gauss(0.0, 0.3))
        for step, step_s in enumerate(usual_s):
            if step == 4 and iteration > 20:
                rest_s = times.predicted_s(step, len(usual_s))
                assert rest_s is not None
                errors.append(abs(rest_s / (longer * sum(usual_s[step:])) - 1))
            times.observe(step, 1, longer * step_s)
    assert sum(errors) / len(errors) < 0.06
    whole_s = times.predicted_s(0, len(usual_s))
    assert whole_s == pytest.approx(sum(usual_s), rel=0.3), "the next one is taken for a usual one"


def test_it_follows_a_device_that_gets_slower_and_forgets_an_outlier():
    times = LayerStepTime(2)
    for _ in range(10):
        times.observe(0, 2, 0.2)
    times.observe(0, 2, 2.0)
    for _ in range(30):
        times.observe(0, 2, 0.4)
    assert times.predicted_s(0, 2) == pytest.approx(0.4, rel=0.01)


def test_as_many_steps_as_take_no_longer():
    times = LayerStepTime(4)
    for step, seconds in enumerate((0.1, 0.2, 0.3, 0.4)):
        times.observe(step, 1, seconds)
    assert [times.num_within(within_s, 0, 4) for within_s in (0.05, 0.15, 0.35, 9.0)] == [0, 1, 2, 4]
    assert times.num_within(0.35, 2, 2) == 1
    assert times.num_within(9.0, 1, 2) == 2


def test_a_step_that_took_no_time_by_the_clock_is_still_learnt():
    times = LayerStepTime(2)
    times.observe(0, 2, 0.0)
    for _ in range(100):
        times.observe(0, 2, 0.1)
    assert times.predicted_s(0, 2) == pytest.approx(0.1, rel=0.01)
