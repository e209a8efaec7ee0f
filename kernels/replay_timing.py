"""Times launches on a GPU without the cost of launching, by replaying a CUDA graph that holds them all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from kernels.graph_capture import capture_graph


def seconds_by_replay(launches: Sequence[Callable[[], object]], rounds: int) -> float:
    """Average seconds of one launch, all of them in a row, in the median round. Each kernel must have been launched
    before: nothing may be compiled in a capture."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    graph, _ = capture_graph(lambda: [launch() for launch in launches], stream)
    with torch.cuda.stream(stream):
        graph.replay()  # the first one also uploads the graph
        return replay_seconds(graph, rounds) / len(launches)


def replay_seconds(graph: torch.cuda.CUDAGraph, rounds: int) -> float:
    """Seconds of a replay in the median round."""
    seconds = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(float(begin.elapsed_time(end)) * 1e-3)
    return statistics.median(seconds)
