from __future__ import annotations

import time

import pytest
import torch

from service.layers.exchange_timer import ExchangeTimer


def test_on_a_cpu_each_exchange_takes_the_hosts_time_and_its_result_goes_through():
    noted: list[int] = []
    timer = ExchangeTimer(noted.append)

    def exchange() -> str:
        with timer.timed(torch.zeros(3)):
            time.sleep(0.01)
            return "what was exchanged"

    assert [exchange() for _ in range(3)] == ["what was exchanged"] * 3
    assert len(noted) == 3
    assert all(10_000_000 <= each < 10_000_000_000 for each in noted)


def test_one_that_fails_is_not_noted_and_its_fault_is_not_hidden():
    noted: list[int] = []
    with pytest.raises(ValueError, match="a rank is gone"), ExchangeTimer(noted.append).timed(torch.zeros(3)):
        raise ValueError("a rank is gone")
    assert noted == []


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_on_a_gpu_some_are_timed_nobody_waits_for_them_and_none_in_a_graph():
    noted: list[int] = []
    timer = ExchangeTimer(noted.append)
    x = torch.ones(4096, 4096, device="cuda")

    def exchange() -> None:
        with timer.timed(x):
            torch.mm(x, x)

    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(80):
            exchange()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    for _ in range(16):
        exchange()
    assert 8 <= len(noted) <= 12
    assert all(each > 10_000 for each in noted)
    num_before, graph = len(noted), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(16):
            exchange()
    graph.replay()
    torch.cuda.synchronize()
    assert len(noted) == num_before
