"""Latency against request rate, for several systems on one trace: the figure in which the papers compare servers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import quantiles

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


@dataclass(frozen=True, slots=True)
class Point:
    """One replay at one offered rate (requests a second; seconds)."""

    offered: float
    throughput: float
    mean_normalized_s: float
    median_normalized_s: float
    median_latency_s: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """One system: what it does under full load, and its points in order of rate.

    token_state: share of the memory that it holds which holds tokens, None if it does not tell.
    """

    system: str
    capacity: float
    batch_size: float
    points: Sequence[Point]
    token_state: float | None = None

    def sustained_rate(self, mean_normalized_s: float) -> float:
        """The highest rate at which the mean normalized latency stays within this, between points by a line.

        0 if even the lowest rate exceeds it. Never more than the throughput under full load: a higher rate would exceed
        every latency if only the trace were long enough.
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
    stage: Stage, make: Callable[[], ServingSystem], workload: str, at_least: int = 0, probe_share: float = 1.0
) -> Sweep:
    """Measures what the system does under full load, with the form's number of requests at once, then each rate.

    `at_least` requests are sent at once where fewer would not fill the system; on a real device, `probe_share` of the
    form's number are enough. The rates are multiples of what it does under full load, and each lasts the form's time,
    or a quarter of the first number of requests.
    """
    form = stage.form
    share = 1.0 if form.models_policies else probe_share
    num_probes = max(round(share * form.num_probes), at_least // form.request_divisor)
    full_load = replay(make(), stage.trace(workload, num_probes))
    capacity = steady_throughput(full_load)
    points = []
    for factor in form.rate_factors:
        rate = factor * capacity
        num_requests = max(num_probes // 4, round(rate * form.sweep_s))
        outcome = replay(make(), stage.trace(workload, num_requests, rate))
        points.append(
            Point(
                rate,
                request_throughput(outcome),
                mean_normalized_latency_s(outcome),
                median_normalized_latency_s(outcome),
                median_latency_s(outcome),
            )
        )
    return Sweep(full_load.system, capacity, mean_batch_size(full_load), points, _token_state(full_load))


def _token_state(outcome: ReplayOutcome) -> float | None:
    if all(iteration.memory is None for iteration in outcome.iterations):
        return None
    return memory_shares(outcome).token_state


def steady_throughput(outcome: ReplayOutcome) -> float:
    """Requests a second between the first and the last fifth of the ends: without filling up and running empty."""
    ends = sorted(completion.finished_s for completion in outcome.completions)
    fifths = quantiles(ends, n=5, method="inclusive")
    if fifths[3] == fifths[0]:
        return request_throughput(outcome)
    return 0.6 * len(ends) / (fifths[3] - fifths[0])


def rate_columns(stage: Stage) -> list[str]:
    """Heads of a table's columns of latencies, one for each rate."""
    first, *others = stage.form.rate_factors
    return [f"at {first:g} of it, ms", *(f"at {factor:g}" for factor in others)]


def latency_plot(title: str, sweeps: Sequence[Sweep], latency: Callable[[Point], float], words: str) -> Plot:
    """Latency against offered rate (log), one line a system; latencies in ms."""
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
    return Plot(Axes(title, "requests/s (log)", f"{words} (cut at 12 x the least)", log_x=True), curves)
