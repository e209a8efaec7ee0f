"""A histogram that costs little: one thread observes, any scrapes, and there are no labels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class PlainHistogram(Collector):
    """As the library's, whose observation takes two locks and a look at each bound: a fifth of its cost. Many equal
    observations are one here: sequences that decode side by side get their tokens at the same moments."""

    def __init__(self, name: str, meaning: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._meaning = meaning
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """So many observations of `value`."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def collect(self) -> Iterator[Metric]:
        below = [*accumulate(self._counts)]
        bounds = [*map(_spelled, self._bounds), "+Inf"]
        buckets = [*zip(bounds, below, strict=True)]
        yield HistogramMetricFamily(self._name, self._meaning, buckets=buckets, sum_value=self._sum)


def _spelled(bound: float) -> str:
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]  # of the library
