from __future__ import annotations

from prometheus_client import CollectorRegistry

from service.core.host_times import HostTimes
from service.metrics.host_seconds import HostSeconds


def test_shows_each_part_as_it_is_now():
    registry, times = CollectorRegistry(), HostTimes()
    registry.register(HostSeconds(times))
    times.sse += 1.5
    assert registry.get_sample_value("headrace_host_seconds_total", {"part": "sse"}) == 1.5
    assert registry.get_sample_value("headrace_host_seconds_total", {"part": "wait"}) == 0.0
