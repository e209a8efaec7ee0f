import pytest

from loadtest.scenarios.rate_comparison import LATENCY_FACTORS, comparison_table
from loadtest.scenarios.rate_sweep import Point, Sweep


def point(rate: float, latency_s: float) -> Point:
    return Point(9, rate, latency_s, latency_s, latency_s)


def test_every_system_is_compared_with_the_first() -> None:
    fast = Sweep("fast", 9, 40.0, 100.0, [point(10.0, 0.01), point(40.0, 0.02)], token_state=0.9)
    slow = Sweep("slow", 9, 8.0, 20.0, [point(2.0, 0.02), point(8.0, 0.05)])
    rows = comparison_table("some", [fast, slow]).rows
    assert LATENCY_FACTORS == (3.0, 10.0)
    assert rows[0] == ["fast", 90.0, 100.0, 1.0, 40.0, 1.0, 40.0, 1.0, 40.0, 1.0]
    assert rows[1] == ["slow", None, 20.0, 5.0, 8.0, 5.0, pytest.approx(4.0), pytest.approx(10.0), 8.0, 5.0]


def test_a_system_that_is_always_slower_sustains_nothing() -> None:
    fast = Sweep("fast", 9, 40.0, 100.0, [point(10.0, 0.01)])
    slow = Sweep("slow", 9, 8.0, 20.0, [point(2.0, 0.05)])
    assert comparison_table("some", [fast, slow]).rows[1][6:8] == [0.0, None]
