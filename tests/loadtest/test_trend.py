import math
import random

import pytest

from loadtest.trend import line_through


def test_a_line_is_found_as_it_is() -> None:
    trend = line_through([0, 1, 2, 3, 10], [5, 7, 9, 11, 25])
    assert trend.slope == pytest.approx(2)
    assert trend.margin == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("resemblance", [0.0, 0.6])
def test_the_margin_holds_the_true_slope_all_but_always(resemblance: float) -> None:
    chance = random.Random(1)
    xs = [float(x) for x in range(100)]
    held = 0
    for _ in range(500):
        noise, ys = chance.gauss(0, 5), []
        for x in xs:
            noise = resemblance * noise + chance.gauss(0, 5)
            ys.append(3 * x + noise)
        trend = line_through(xs, ys)
        held += abs(trend.slope - 3) <= trend.margin
    assert held >= 495


def test_a_few_steps_are_no_trend_and_a_steady_rise_is_one() -> None:
    chance = random.Random(2)
    surely_rising = 0
    for _ in range(300):
        high = [max(chance.expovariate(1 / 5) for _ in range(20))]  # what was needed in the warm-up
        for _ in range(19):
            high.append(max(high[-1], chance.expovariate(1 / 5)))
        surely_rising += line_through(range(20), high).at_least > 0.3
    assert surely_rising / 300 < 0.02
    rise = [0.5 * x + chance.gauss(0, 1) for x in range(20)]
    assert line_through(range(20), rise).at_least > 0.3


def test_few_samples_say_nothing() -> None:
    assert line_through([0, 1, 2], [0, 100, 200]).at_least == -math.inf
    assert line_through([1, 1, 1, 1], [0, 1, 2, 3]).at_least == -math.inf
