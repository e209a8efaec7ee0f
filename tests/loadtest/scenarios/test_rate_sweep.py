import pytest

from loadtest.offline.serving_system import Completion, ReplayOutcome
from loadtest.scenarios.rate_sweep import Point, Sweep, latency_plot, requests_note, steady_throughput


def sweep(*points: tuple[float, float]) -> Sweep:
    return Sweep("any", 9, 10.0, 1.0, [Point(4, rate, latency, latency, latency) for rate, latency in points])


def ended(*ends: float) -> ReplayOutcome:
    return ReplayOutcome("any", [Completion(i, 0.0, 0.0, end, 1) for i, end in enumerate(ends)])


def test_sustained_rate_lies_on_the_line_between_two_points() -> None:
    assert sweep((1.0, 0.1), (2.0, 0.3)).sustained_rate(0.2) == pytest.approx(1.5)


def test_sustained_rate_at_the_ends() -> None:
    assert sweep((1.0, 0.1), (2.0, 0.3)).sustained_rate(0.05) == 0.0
    assert sweep((1.0, 0.1), (2.0, 0.3)).sustained_rate(0.4) == 2.0


def test_no_rate_above_the_throughput_under_full_load_is_sustained() -> None:
    assert sweep((1.0, 0.1), (11.0, 0.3)).sustained_rate(0.4) == 10.0


def test_steady_throughput_leaves_out_filling_up_and_running_empty() -> None:
    ends = [5.0] * 2 + [5.0 + 0.1 * i for i in range(1, 17)] + [100.0] * 2
    assert steady_throughput(ended(*ends), len(ends)) == pytest.approx(10, rel=0.1)


def test_what_ends_in_batches_is_counted_in_whole_batches() -> None:
    """20 every 5 s, whether the fifths' borders fall on a batch's or not, and whether the last ones are known."""
    ends = [5.0 * (1 + i // 20) for i in range(100)]
    assert steady_throughput(ended(*ends), 100) == pytest.approx(4)
    assert steady_throughput(ended(*ends[:80]), 100) == pytest.approx(4)
    assert steady_throughput(ended(*ends[:70]), 70) == pytest.approx(4)


def test_one_batch_has_the_throughput_of_the_whole() -> None:
    assert steady_throughput(ended(2.0, 2.0, 2.0), 3) == 1.5


def test_the_note_tells_how_many_requests_there_were() -> None:
    note = requests_note([sweep((1.0, 0.1), (2.0, 0.3))])
    assert note == "requests at once for the full load (at a rate): any 9 (4 to 4)"


def test_the_plot_cuts_what_runs_away() -> None:
    plot = latency_plot("t", [sweep((1.0, 0.1), (2.0, 50.0))], lambda point: point.mean_normalized_s, "ms")
    assert max(plot.curves[0].ys) == pytest.approx(1200)
