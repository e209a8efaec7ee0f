from __future__ import annotations

import pytest
import torch

from service.runner.step_timer import StepTimer


def test_without_a_clock_of_the_devices_nothing_is_noted():
    timer = StepTimer(torch.device("cpu"))
    timer.begins()
    assert timer.take() is None


@pytest.mark.gpu
def test_the_moment_noted_last_is_told_once():
    timer = StepTimer(torch.device("cuda"))
    before, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    timer.begins()
    torch.cuda._sleep(10**9)  # part of no step
    timer.begins()
    torch.cuda._sleep(10**6)
    end.record()
    began = timer.take()
    assert timer.take() is None
    end.synchronize()
    assert began is not None
    assert 0 < began.elapsed_time(end) < before.elapsed_time(end) / 2
