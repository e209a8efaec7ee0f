"""Time of a kernel launch among others in a row, as in a step; on a GPU by replays of a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from kernels.replay_timing import seconds_by_replay

Launch = Callable[[], object]
_ROUNDS = 7


def bench_device() -> torch.device:
    """The GPU, if there is one; else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def seconds_of_launch(launches: Sequence[Launch]) -> float:
    """Seconds per launch when all run in a row: the median of several rounds; on a CPU the best one."""
    for launch in launches:
        launch()
    if bench_device().type == "cuda":
        return seconds_by_replay(launches, _ROUNDS)
    return min(_runs(launches)) / len(launches)


def _runs(launches: Sequence[Launch]) -> list[float]:
    seconds = []
    for _ in range(_ROUNDS):
        started_s = time.perf_counter()
        for launch in launches:
            launch()
        seconds.append(time.perf_counter() - started_s)
    return seconds
