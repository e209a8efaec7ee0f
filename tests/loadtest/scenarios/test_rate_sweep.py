import pytest

from loadtest.offline.serving_system import Completion, ReplayOutcome
from loadtest.scenarios.rate_sweep import Point, Sweep, latency_plot, steady_throughput


def sweep(*points: tuple[float, float]) -> Sweep:
    return Sweep("any", 10.0, 1.0, [Point(rate, rate, latency, latency, latency) for rate, latency in points])


def test_sustained_rate_lies_on_the_line_between_two_points() -> None:
    assert sweep((1.0, 0.1), (2.0, 0.3)).sustained_rate(0.2) == pytest.approx(1.5)


def test_sustained_rate_at_the_ends() -> None:
    assert sweep((1.0, 0.1), (2.0, 0.3)).sustained_rate(0.05) == 0.0
    assert sweep((1.0, 0.1), (2.0, 0.3)).sustained_rate(0.4) == 2.0


def test_no_rate_above_the_throughput_under_full_load_is_sustained() -> None:
    assert sweep((1.0, 0.1), (11.0, 0.3)).sustained_rate(0.4) == 10.0


def test_steady_throughput_leaves_out_filling_up_and_running_empty() -> None:
    ends = [5.0] * 2 + [5.0 + 0.1 * i for i in range(1, 17)] + [100.0] * 2
    completions = [Completion(i, 0.0, 0.0, end, 1) for i, end in enumerate(ends)]
    assert steady_throughput(ReplayOutcome("any", completions)) == pytest.approx(10, rel=0.1)


def test_the_plot_cuts_what_runs_away() -> None:
    plot = latency_plot("t", [sweep((1.0, 0.1), (2.0, 50.0))], lambda point: point.mean_normalized_s, "ms")
    assert max(plot.curves[0].ys) == pytest.approx(1200)
