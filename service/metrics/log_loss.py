"""How many log lines were lost, read at scrape time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric


class LogLoss:
    """A Prometheus collector. num_lost: lines since the start; called from the thread that scrapes, whichever it is."""

    def __init__(self, num_lost: Callable[[], int]) -> None:
        self._num_lost = num_lost

    def collect(self) -> Iterator[Metric]:
        meaning = "Log lines dropped because the reader was too slow."
        yield CounterMetricFamily("headrace_log_lines_lost", meaning, value=self._num_lost())
