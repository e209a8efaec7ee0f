from __future__ import annotations

import torch

from loadtest.bench.launch_timing import bench_device, seconds_of_launch


def test_every_launch_is_made_and_timed():
    counters = [torch.zeros(1, device=bench_device()) for _ in range(3)]
    seconds = seconds_of_launch([lambda c=counter: c.add_(1) for counter in counters])
    assert 0 < seconds < 1
    assert all(counter.item() >= 2 for counter in counters)
    assert len({counter.item() for counter in counters}) == 1
