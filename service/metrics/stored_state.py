"""Metrics of stored files and of batches, read at scrape time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_BATCH_STATUSES = ("validating", "in_progress", "finalizing", "cancelling")
_OUTCOMES = ("completed", "failed")


class StoredState(NamedTuple):
    """num_bytes, max_bytes: of files. batches: that have not ended, by status. num_lines_running: their running lines;
    num_lines_left: lines of running batches that have no answer yet. lines: since the start, by outcome."""

    num_bytes: int
    max_bytes: int
    batches: Mapping[str, int]
    num_lines_running: int
    num_lines_left: int
    lines: Mapping[str, int]


class StoredStateGauges:
    """A Prometheus collector. read: called from the thread that scrapes, whichever it is."""

    def __init__(self, read: Callable[[], StoredState]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        now = self._read()
        yield _gauge("headrace_storage_bytes", "Bytes of stored files, including those being written.", now.num_bytes)
        yield _gauge("headrace_storage_limit_bytes", "Limit for the bytes of stored files.", now.max_bytes)
        batches = GaugeMetricFamily("headrace_batches", "Unfinished batches.", labels=("status",))
        for status in _BATCH_STATUSES:
            batches.add_metric((status,), now.batches.get(status, 0))
        yield batches
        yield _gauge("headrace_batch_lines_running", "Batch lines that run or wait.", now.num_lines_running)
        left = "Lines of batches in progress without an answer, running or not."
        yield _gauge("headrace_batch_lines_left", left, now.num_lines_left)
        lines = CounterMetricFamily("headrace_batch_lines", "Batch lines answered.", labels=("outcome",))
        for outcome in _OUTCOMES:
            lines.add_metric((outcome,), now.lines.get(outcome, 0))
        yield lines


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=value)
