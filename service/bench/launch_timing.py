"""How long a launch takes where one follows the other, as in a step: on a GPU by replays of a CUDA graph."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

Launch = Callable[[], object]
_ROUNDS = 7


def bench_device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def seconds_of_launch(launches: Sequence[Launch]) -> float:
    """Of one launch on the average when all run in a row: the median of several rounds, the best of them on a CPU."""
    for launch in launches:
        launch()
    if bench_device().type == "cuda":
        return statistics.median(_replays(launches)) / len(launches)
    return min(_runs(launches)) / len(launches)


def _replays(launches: Sequence[Launch]) -> list[float]:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    graph.replay()
    seconds = []
    for _ in range(_ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(float(begin.elapsed_time(end)) * 1e-3)
    return seconds


def _runs(launches: Sequence[Launch]) -> list[float]:
    seconds = []
    for _ in range(_ROUNDS):
        started_s = time.perf_counter()
        for launch in launches:
            launch()
        seconds.append(time.perf_counter() - started_s)
    return seconds
