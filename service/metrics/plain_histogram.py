"""A cheap histogram: one thread observes, any thread scrapes, and labels are few."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString


class PlainHistogram(Collector):
    """Costs a fifth of the library's, which takes two locks and compares with each bound. Many equal observations are
    one call here: sequences that decode together get their tokens at the same moments. A scrape during an
    observation may find it in the counts only or in the sum only, as with the library's."""

    def __init__(self, name: str, meaning: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._meaning = meaning
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._series = HistogramSeries(self, name, meaning, {})

    def observe(self, value: float, count: int = 1) -> None:
        """`count` observations of `value`."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    @property
    def sum(self) -> float:
        """Of all observations."""
        return self._sum

    @property
    def bounds(self) -> list[str]:
        """As in labels, the infinite one last."""
        return [*map(_spelled, self._bounds), "+Inf"]

    @property
    def num_up_to(self) -> list[int]:
        """For each bound, how many observations were no larger."""
        return [*accumulate(self._counts)]

    def shown_as(self, name: str, labels: Mapping[str, str]) -> HistogramSeries:
        """The same observations under another name, or with labels."""
        return HistogramSeries(self, name, self._meaning, labels)

    def collect(self) -> Iterator[Metric]:
        yield self._series.metric()


class HistogramSeries:
    """A histogram's name and labels in an exposition. Labels are made once: a scrape only adds the values."""

    def __init__(self, histogram: PlainHistogram, name: str, meaning: str, labels: Mapping[str, str]) -> None:
        self._histogram = histogram
        self._name = name
        self._meaning = meaning
        self._labels = dict(labels)
        self._of_buckets = [{**labels, "le": bound} for bound in histogram.bounds]

    def metric(self) -> Metric:
        metric = Metric(self._name, self._meaning, "histogram")
        metric.samples = self.samples()
        return metric

    def samples(self) -> list[Sample]:
        """The buckets, their count and the sum."""
        name, counts = f"{self._name}_bucket", self._histogram.num_up_to
        found = [Sample(name, labels, count) for labels, count in zip(self._of_buckets, counts, strict=True)]
        found.append(Sample(f"{self._name}_count", self._labels, counts[-1]))
        found.append(Sample(f"{self._name}_sum", self._labels, self._histogram.sum))
        return found


class PlainHistograms(Collector):
    """One for each value of a label; the values are known beforehand."""

    def __init__(self, name: str, meaning: str, bounds: Sequence[float], label: str, values: Sequence[str]) -> None:
        self._name = name
        self._meaning = meaning
        self._by_value = {value: PlainHistogram(name, meaning, bounds) for value in values}
        self._series = [each.shown_as(name, {label: value}) for value, each in self._by_value.items()]

    def labels(self, value: str) -> PlainHistogram:
        """The one with this value."""
        return self._by_value[value]

    def collect(self) -> Iterator[Metric]:
        metric = Metric(self._name, self._meaning, "histogram")
        metric.samples = [sample for series in self._series for sample in series.samples()]
        yield metric


def _spelled(bound: float) -> str:
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]  # of the library
