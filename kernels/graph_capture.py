"""Captures launches as a CUDA graph."""

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
    """Returns the graph and what `launch` returned: tensors that a replay writes. pool: a memory pool to share with
    other graphs.

    Each kernel must have been launched before: none may be compiled or loaded during a capture. Other threads may use
    the device meanwhile. If `launch` raises, no capture is left open.
    """
    graph = torch.cuda.CUDAGraph()
    was_collecting = gc.isenabled()
    gc.disable()  # a collection may free another graph or wait for the device, and either would end the capture
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = launch()
            except BaseException:
                with suppress(RuntimeError):  # the capture's own error, after the one that ended it
                    _end(graph, stream)
                raise
            _end(graph, stream)
    finally:
        if was_collecting:
            gc.enable()
    return graph, result


def _end(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
    """End the capture on the stream, which is the current one.

    If the device has given up a capture, torch's random generator stays in its capturing state, so nothing can be drawn
    from it, until another capture ends successfully. So that case makes one more capture, of next to nothing.
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
