from __future__ import annotations

import pytest
import torch

from kernels.replay_timing import seconds_by_replay


@pytest.mark.gpu
def test_each_launch_counts_once_a_round():
    counters = [torch.zeros(1, device="cuda") for _ in range(3)]
    seconds = seconds_by_replay([lambda c=counter: c.add_(1) for counter in counters], rounds=4)
    torch.cuda.synchronize()
    assert 0 < seconds < 1
    assert [counter.item() for counter in counters] == [5, 5, 5]
