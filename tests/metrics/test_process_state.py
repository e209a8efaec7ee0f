from __future__ import annotations

import gc
import os
import sys

import pytest
from prometheus_client import ProcessCollector
from prometheus_client.registry import Collector

from service.metrics.process_state import ProcessState

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def facts_of(collector: Collector) -> dict[str, float]:
    return {sample.name: sample.value for metric in collector.collect() for sample in metric.samples}


def test_says_what_the_librarys_says():
    ours, theirs = facts_of(ProcessState()), facts_of(ProcessCollector(registry=None))
    assert ours.keys() == theirs.keys()
    assert ours["process_start_time_seconds"] == pytest.approx(theirs["process_start_time_seconds"], abs=2)
    assert ours["process_cpu_seconds_total"] == pytest.approx(theirs["process_cpu_seconds_total"], abs=1)
    assert ours["process_max_fds"] == theirs["process_max_fds"]
    for name in ("process_virtual_memory_bytes", "process_resident_memory_bytes"):
        assert ours[name] == pytest.approx(theirs[name], rel=0.1)


def test_every_open_file_counts():
    process = ProcessState()
    before = facts_of(process)["process_open_fds"]
    opened = [os.dup(1) for _ in range(10)]
    try:
        assert facts_of(process)["process_open_fds"] == before + 10
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_an_older_kernel_has_them_counted(monkeypatch: pytest.MonkeyPatch):
    """A thread that waits in accept() has a descriptor for whoever comes, which the size counts and no list names."""
    gc.collect()  # what other tests have left is not to be closed in between
    process = ProcessState()
    now = len(os.listdir("/proc/self/fd"))
    stat = os.stat(os.devnull)  # whose size is 0
    monkeypatch.setattr(os, "stat", lambda path, **_: stat)
    assert facts_of(process)["process_open_fds"] == pytest.approx(now, abs=1)  # with the one that lists them
