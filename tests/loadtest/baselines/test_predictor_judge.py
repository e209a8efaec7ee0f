import random

import pytest

from loadtest.baselines.predictor_judge import Errors, averaging, errors_of, fitted
from loadtest.baselines.preemption_judge import Timing
from service.prediction.workload import Workload


def timings(count: int, noise: float = 0.0) -> list[Timing]:
    """Half of them decodes; a cached token takes a tenth of a computed one's time."""
    chance, taken = random.Random(1), list[Timing]()
    for number in range(count):
        work = Workload.of_decodes(chance.randint(1, 60), chance.randint(60, 6000))
        if number % 2:
            work = work.with_chunk(0, chance.randint(2, 64))
        seconds = 4e-3 + 1e-5 * work.num_tokens + 1e-6 * work.num_read
        taken.append((work, seconds * (1 + chance.choice((-noise, noise)))))
    return taken


def test_the_law_is_as_far_off_as_iterations_repeat_themselves_and_the_average_is_farther() -> None:
    for noise in (0.0, 0.03):
        traffic = timings(600, noise)
        law = errors_of(fitted(None), timings(100), traffic)
        average = errors_of(averaging(), timings(100), traffic)
        for errors, of_twin in zip(law, average, strict=True):
            assert errors.count == of_twin.count == 300
            assert errors.mean == pytest.approx(100 * noise, abs=0.3)
            assert of_twin.mean > 2 * errors.mean


def test_a_feature_that_the_time_hangs_on_is_missed_and_one_that_it_does_not_is_not() -> None:
    means = [
        errors_of(fitted(None, without), timings(100), timings(600))[1].mean
        for without in (None, "tokens read", "pairs")
    ]
    assert means[1] > 5
    assert means[2] == pytest.approx(means[0], abs=0.1)


def test_errors_tell_long_from_short() -> None:
    errors = Errors.of([0.1, 0.3, -0.2])
    assert (errors.count, errors.mean, errors.over, errors.under) == pytest.approx((3, 20, 20, 20))
    assert errors.p90 >= 30
