"""The process's metrics under the names that every Prometheus client has.

The library's collector opens four files and lists a folder. Each of these calls releases the GIL, which the engine's
thread then keeps for a while: under load a scrape took 6 ms more. This one makes two such calls.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_MEMORY, _FILES = "/proc/self/statm", "/proc/self/fd"


class ProcessState(Collector):
    """A Prometheus collector, Linux only. To be made soon after the process starts."""

    def __init__(self) -> None:
        self._started_s = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + _started_monotonic_s()
        self._page_bytes = resource.getpagesize()
        self._memory = os.open(_MEMORY, os.O_RDONLY)  # open as long as the process lives

    def collect(self) -> Iterator[Metric]:
        virtual, resident = (int(n) * self._page_bytes for n in os.pread(self._memory, 128, 0).split()[:2])
        yield GaugeMetricFamily("process_virtual_memory_bytes", "Virtual memory size in bytes.", virtual)
        yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory size in bytes.", resident)
        meaning = "Start time of the process since unix epoch in seconds."
        yield GaugeMetricFamily("process_start_time_seconds", meaning, self._started_s)
        meaning = "Total user and system CPU time spent in seconds."
        yield CounterMetricFamily("process_cpu_seconds", meaning, time.process_time())
        yield GaugeMetricFamily("process_open_fds", "Number of open file descriptors.", _num_open_files())
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield GaugeMetricFamily("process_max_fds", "Maximum number of open file descriptors.", most)


def _started_monotonic_s() -> float:
    """When the process started, in seconds since the boot."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # after the command, which may have spaces
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _num_open_files() -> int:
    """Linux 6.2 and later tell it as the folder's size; before that they are counted."""
    return os.stat(_FILES).st_size or len(os.listdir(_FILES))
