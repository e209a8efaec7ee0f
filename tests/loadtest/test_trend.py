import math
import random

import pytest

from loadtest.trend import line_through


def test_a_line_is_found_as_it_is() -> None:
    trend = line_through([0, 1, 2, 3, 10], [5, 7, 9, 11, 25])
    assert trend.slope == pytest.approx(2)
    assert trend.margin == pytest.approx(0, abs=1e-9)


def test_the_margin_holds_the_true_slope_in_nineteen_of_twenty_draws() -> None:
    chance = random.Random(1)
    xs = [float(x) for x in range(8)]
    trends = [line_through(xs, [3 * x + chance.gauss(0, 5) for x in xs]) for _ in range(4000)]
    held = sum(abs(trend.slope - 3) <= trend.margin for trend in trends) / len(trends)
    assert held == pytest.approx(0.95, abs=0.015)


def test_few_samples_say_nothing() -> None:
    assert line_through([0, 1, 2], [0, 100, 200]).at_least == -math.inf
    assert line_through([1, 1, 1, 1], [0, 1, 2, 3]).at_least == -math.inf
