"""Latency against request rate, for several systems on one trace: the figure in which the papers compare servers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.offline.figures_of_merit import (
    mean_batch_size,
    mean_normalized_latency_s,
    median_latency_s,
    median_normalized_latency_s,
    memory_shares,
    request_throughput,
)
from loadtest.offline.replay import replay
from loadtest.offline.serving_system import ReplayOutcome, ServingSystem
from loadtest.scenarios.figure import Plot
from loadtest.scenarios.stage import Stage
from loadtest.svg_plot import Axes, Curve

_FULL_UNTIL = 0.8
"""When this share of the requests sent at once has ended, the throughput is known, since the system then drains."""


@dataclass(frozen=True, slots=True)
class Point:
    """One replay at one offered rate. offered: requests/s. The others are in seconds."""

    num_requests: int
    offered: float
    mean_normalized_s: float
    median_normalized_s: float
    median_latency_s: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """One system: capacity is its requests/s under full load (`num_requests` at once); points are in order of rate.

    token_state: share of the memory held that has tokens in it; None if the system does not report it.
    """

    system: str
    num_requests: int
    capacity: float
    batch_size: float
    points: Sequence[Point]
    token_state: float | None = None

    def sustained_rate(self, mean_normalized_s: float) -> float:
        """The highest rate in requests/s whose mean normalized latency is within this, interpolated linearly.

        0 if even the lowest rate exceeds it. At most the throughput under full load: with a higher rate, latency would
        grow without limit in a longer trace.
        """
        return min(self._rate_within(mean_normalized_s), self.capacity)

    def _rate_within(self, mean_normalized_s: float) -> float:
        last: Point | None = None
        for point in self.points:
            if point.mean_normalized_s > mean_normalized_s:
                if last is None:
                    return 0.0
                share = (mean_normalized_s - last.mean_normalized_s) / (
                    point.mean_normalized_s - last.mean_normalized_s
                )
                return last.offered + share * (point.offered - last.offered)
            last = point
        return 0.0 if last is None else last.offered


def sweep(
    stage: Stage,
    make: Callable[[], ServingSystem],
    workload: str,
    num_requests: int,
    rate_factors: Sequence[float],
) -> Sweep:
    """Measure the full load, with `num_requests` at once, then each rate.

    Rates are `rate_factors` x the throughput under full load. Each lasts the form's time, or for the form's share of
    the number of requests.
    """
    full_load = replay(make(), stage.trace(workload, num_requests), _FULL_UNTIL)
    capacity = steady_throughput(full_load, num_requests)
    points = []
    for factor in rate_factors:
        rate = factor * capacity
        num = max(1, round(num_requests * stage.form.sweep_share), round(rate * stage.form.sweep_s))
        outcome = replay(make(), stage.trace(workload, num, rate))
        points.append(
            Point(
                num,
                rate,
                mean_normalized_latency_s(outcome),
                median_normalized_latency_s(outcome),
                median_latency_s(outcome),
            )
        )
    return Sweep(full_load.system, num_requests, capacity, mean_batch_size(full_load), points, _token_state(full_load))


def _token_state(outcome: ReplayOutcome) -> float | None:
    if all(iteration.memory is None for iteration in outcome.iterations):
        return None
    return memory_shares(outcome).token_state


def steady_throughput(outcome: ReplayOutcome, num_requests: int) -> float:
    """Requests/s between the first and the fourth fifth of the completions: leaves out filling up and draining.

    Requests that end together with the last of the first fifth are not counted, so only whole batches are.
    """
    ends = sorted(completion.finished_s for completion in outcome.completions)
    first, last = ends[num_requests // 5], ends[4 * num_requests // 5 - 1]
    if first == last:
        return request_throughput(outcome)
    return sum(first < end <= last for end in ends) / (last - first)


def requests_note(sweeps: Sequence[Sweep]) -> str:
    """How many requests the figures are based on."""
    counts = (
        f"{one.system} {one.num_requests} ({min(at_a_rate)} to {max(at_a_rate)})"
        for one in sweeps
        if (at_a_rate := [point.num_requests for point in one.points])
    )
    return f"requests at once for the full load (at a rate): {'; '.join(counts)}"


def rate_columns(stage: Stage) -> list[str]:
    """Headings of a table's latency columns, one per rate."""
    first, *others = stage.form.rate_factors
    return [f"at {first:g} x full load, ms", *(f"at {factor:g}" for factor in others)]


def latency_plot(title: str, sweeps: Sequence[Sweep], latency: Callable[[Point], float], words: str) -> Plot:
    """Latency in ms against offered rate (log), one line per system."""
    highest = 12 * min(latency(point) for sweep in sweeps for point in sweep.points)
    curves = [
        Curve(
            sweep.system,
            [point.offered for point in sweep.points],
            [min(latency(point), highest) * 1e3 for point in sweep.points],
            index,
            markers=True,
        )
        for index, sweep in enumerate(sweeps)
    ]
    return Plot(Axes(title, "requests/s (log)", f"{words} (cut at 12 x the lowest)", log_x=True), curves)
