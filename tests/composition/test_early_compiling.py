from __future__ import annotations

import pytest

from kernels import compile_processes
from service.composition import early_compiling
from service.composition.early_compiling import end_compiling_early, start_compiling_early
from service.settings.settings import Settings


@pytest.fixture
def started(monkeypatch):
    """How many processes were asked for, each time; None: that they end."""
    calls = []
    monkeypatch.setattr(compile_processes, "start", calls.append)
    monkeypatch.setattr(compile_processes, "stop", lambda: calls.append(None))
    return calls


def machine(monkeypatch, num_cores, *, has_gpu):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(num_cores)))
    monkeypatch.setattr(early_compiling, "has_gpu", lambda: has_gpu)


@pytest.mark.parametrize(("num_cores", "num"), [(4, 4), (12, 12), (192, 16)])
def test_there_are_as_many_as_cores_up_to_what_kernels_need(num_cores, num, started, monkeypatch):
    machine(monkeypatch, num_cores, has_gpu=True)
    start_compiling_early(Settings())
    end_compiling_early()
    assert started == [num, None]


@pytest.mark.parametrize(
    ("device", "num_cores", "has_gpu"), [("cpu", 16, True), ("auto", 16, False), ("cuda", 3, True)]
)
def test_there_are_none_for_a_cpu_and_on_few_cores(device, num_cores, has_gpu, started, monkeypatch):
    machine(monkeypatch, num_cores, has_gpu=has_gpu)
    start_compiling_early(Settings(device=device))
    assert started == []
