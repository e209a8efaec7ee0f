from __future__ import annotations

import time

import pytest
import torch

from service.runner.choices.timer import seconds_on_cpu, seconds_on_gpu, timer_of


def test_each_device_has_its_own():
    assert timer_of(torch.device("cpu")) is seconds_on_cpu
    assert timer_of(torch.device("cuda")) is seconds_on_gpu


def test_of_one_launch_on_the_average_by_the_processor_time_of_one_thread():
    threads, launched = [], []

    def work():
        threads.append(torch.get_num_threads())
        end_s = time.thread_time() + 0.02
        while time.thread_time() < end_s:
            pass

    before = torch.get_num_threads()
    launches = [work, lambda: launched.append(time.sleep(0.05))]  # to wait is no processor time
    assert 0.01 <= seconds_on_cpu(launches) < 0.02
    assert set(threads) == {1} and torch.get_num_threads() == before
    assert len(launched) == len(threads) > 1, "the least of several rounds"


def test_the_threads_come_back_after_a_fault():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        seconds_on_cpu([lambda: 1 // 0])
    assert torch.get_num_threads() == before


@pytest.mark.gpu
def test_on_a_gpu_nothing_is_compiled_in_the_capture():
    launched, counter = [], torch.zeros(1, device="cuda")

    def add(name):
        launched.append((name, torch.cuda.is_current_stream_capturing()))
        counter.add_(1)

    assert seconds_on_gpu([lambda: add("one"), lambda: add("other")]) > 0
    assert launched == [("one", False), ("other", False), ("one", True), ("other", True)]
