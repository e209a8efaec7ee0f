"""A CUDA graph of what is launched meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def capture_graph(
    launch: Callable[[], Result], stream: torch.cuda.Stream, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """The graph, and what `launch` returned: tensors that a replay writes. pool: of memory, to share with other graphs.

    Each kernel has been launched before: none may be compiled or loaded in a capture. Other threads may use the device
    meanwhile. If `launch` raises, no capture is left behind.
    """
    graph = torch.cuda.CUDAGraph()
    was_collecting = gc.isenabled()
    gc.disable()  # what a collection frees may be another graph, or wait for the device, and either ends a capture
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = launch()
            except BaseException:
                with suppress(RuntimeError):  # the capture's own complaint, after the fault that ended it
                    _end(graph, stream)
                raise
            _end(graph, stream)
    finally:
        if was_collecting:
            gc.enable()
    return graph, result


def _end(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
    """End its capture on the stream, the current one.

    One that the device has given up leaves torch's random generator capturing, so that nobody can draw from it, and
    only the end of a capture that succeeds lets it go. So there is one more then, of next to nothing.
    """
    try:
        graph.capture_end()
    except RuntimeError:
        with suppress(RuntimeError):
            number = torch.empty(1, device=stream.device).zero_()
            another = torch.cuda.CUDAGraph()
            another.capture_begin(capture_error_mode="thread_local")
            number.zero_()
            another.capture_end()
        raise
