"""Who multiplies few rows by a weight on a GPU: cuBLAS, or kernels/skinny_linear.py. F.linear is the plain twin.

The answer depends on the shape and the device, so at load each shape of a model is timed over the model's own weights.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.skinny_linear import MAX_ROWS, skinny_linear

_TIMED_ROWS = (1, 8, MAX_ROWS)
_TIMED_BYTES = 256 << 20  # several times a GPU's L2 cache
_MAX_LAUNCHES = 64
_MAY_COST = 1.03
"""The kernels beside it in a step gain a microsecond or two from its dependent launch (kernels/dependent_launch.py),
which timing the products alone does not show."""

Multiply = Callable[[Tensor, Tensor], Tensor]


def most_skinny_rows(weights: Sequence[Tensor]) -> int:
    """Up to how many rows skinny_linear is the better one, for weights of one shape, type and device; 0: never.

    On a CPU, and for types that the kernel does not know, 0. On a GPU some milliseconds, beside compiling.
    """
    first = weights[0]
    if not first.is_cuda or first.dtype not in (torch.bfloat16, torch.float32):
        return 0
    num_weights = min(len(weights), max(1, _TIMED_BYTES // first.nbytes))
    num_rounds = max(1, min(_MAX_LAUNCHES, _TIMED_BYTES // first.nbytes) // num_weights)
    timed = list(weights[:num_weights]) * num_rounds
    most = 0
    for num_rows in _TIMED_ROWS:
        x = torch.randn(num_rows, first.shape[1], device=first.device, dtype=first.dtype)
        if _seconds(skinny_linear, x, timed) > _MAY_COST * _seconds(F.linear, x, timed):
            break
        most = num_rows
    return most


def _seconds(multiply: Multiply, x: Tensor, weights: Sequence[Tensor]) -> float:
    """Of one product, when launches cost nothing: by a graph of them all."""
    stream, graph = torch.cuda.Stream(x.device), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        multiply(x, weights[0])
        torch.cuda.synchronize()
        graph.capture_begin()
        for weight in weights:
            multiply(x, weight)
        graph.capture_end()
        times = []
        for _ in range(5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(float(start.elapsed_time(end)) / 1e3)
    return statistics.median(times) / len(weights)
