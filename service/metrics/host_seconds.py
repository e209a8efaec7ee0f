"""The host's time by part, read at the moment of the scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from service.core.host_times import HostTimes


class HostSeconds:
    """A Prometheus collector."""

    def __init__(self, times: HostTimes) -> None:
        self._times = times

    def collect(self) -> Iterator[Metric]:
        seconds = CounterMetricFamily("headrace_host_seconds", "Host seconds, by part.", labels=["part"])
        for part, value in self._times.by_part().items():
            seconds.add_metric([part], value)
        yield seconds
