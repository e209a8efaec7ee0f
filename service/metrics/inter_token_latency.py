"""Seconds between a request's tokens: many equal ones an iteration, counted together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class InterTokenLatency(Collector):
    """A histogram without labels. One thread observes, any scrapes.

    Sequences that decode side by side get their tokens at the same moments, so an iteration of 256 of them is one line
    here; the library's histogram would take 256 observations, a microsecond each.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum_s = 0.0

    def observe(self, gaps: Iterable[tuple[float, int]]) -> None:
        """Each is a number of seconds, and how many tokens came after so many."""
        for seconds, count in gaps:
            self._counts[bisect_left(self._bounds, seconds)] += count
            self._sum_s += seconds * count

    def collect(self) -> Iterator[Metric]:
        below = [*accumulate(self._counts)]
        bounds = [*(str(bound) for bound in self._bounds), "+Inf"]
        yield HistogramMetricFamily(
            "headrace_inter_token_latency_seconds",
            "Time between a request's tokens, each of them.",
            buckets=[*zip(bounds, below, strict=True)],
            sum_value=self._sum_s,
        )
