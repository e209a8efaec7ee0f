"""How long launches take: what every choice is based on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from kernels.replay_timing import seconds_by_replay

Timer = Callable[[Sequence[Callable[[], object]]], float]
"""Average seconds of one launch, when all of them run in a row."""

_GPU_ROUNDS, _CPU_ROUNDS = 5, 3


def timer_of(device: torch.device) -> Timer:
    return seconds_on_gpu if device.type == "cuda" else seconds_on_cpu


def seconds_on_gpu(launches: Sequence[Callable[[], object]]) -> float:
    """Timed as a CUDA graph replays them."""
    for launch in launches:
        launch()  # nothing may be compiled in a capture
    return seconds_by_replay(launches, _GPU_ROUNDS)


def seconds_on_cpu(launches: Sequence[Callable[[], object]]) -> float:
    """Measured as the thread's processor time, which stays right when other processes keep the other cores busy."""
    with _one_thread():
        return min(_thread_seconds(launches) for _ in range(_CPU_ROUNDS)) / len(launches)


def _thread_seconds(launches: Sequence[Callable[[], object]]) -> float:
    start_s = time.thread_time()
    for launch in launches:
        launch()
    return time.thread_time() - start_s


@contextmanager
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
