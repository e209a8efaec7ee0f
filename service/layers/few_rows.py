"""Who multiplies few rows by a weight on a GPU: cuBLAS, or kernels/skinny_linear.py. F.linear is the plain twin.

The answer depends on the shape and the device, so at load each shape of a model is timed over the model's own weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.compile_ahead import compile_ahead
from kernels.replay_timing import seconds_by_replay
from kernels.skinny_linear import FEW_ROWS, MAX_ROWS, skinny_linear

_TIMED_ROWS = (1, 8, FEW_ROWS, MAX_ROWS)
"""MAX_ROWS in 16 bits only: for fp32 the kernel multiplies without matrix units."""
_TIMED_BYTES = 256 << 20  # several times a GPU's L2 cache
_MAX_LAUNCHES = 64
_ROUNDS = 5
_MAY_COST = 1.08
"""The kernels beside it in a step gain a microsecond or two from its dependent launch (kernels/dependent_launch.py),
which timing the products alone does not show."""

Multiply = Callable[[Tensor, Tensor], Tensor]


def most_skinny_rows(weights: Sequence[Tensor], arrivals: Tensor | None) -> int:
    """Up to how many rows skinny_linear is the better one, for weights of one shape, type and device; 0: never.

    arrivals: of skinny_linear. On a CPU, and for types that the kernel does not know, 0. On a GPU some milliseconds,
    beside compiling.
    """
    first = weights[0]
    if not timed_rows(first):
        return 0
    num_weights = min(len(weights), max(1, _TIMED_BYTES // first.nbytes))
    num_rounds = max(1, min(_MAX_LAUNCHES, _TIMED_BYTES // first.nbytes) // num_weights)
    timed = list(weights[:num_weights]) * num_rounds
    most = 0
    for num_rows in timed_rows(first):
        x = torch.randn(num_rows, first.shape[1], device=first.device, dtype=first.dtype)
        if _seconds(partial(skinny_linear, arrivals=arrivals), x, timed) > _MAY_COST * _seconds(F.linear, x, timed):
            break
        most = num_rows
    return most


def compile_skinny(weights: Sequence[Tensor], arrivals: Tensor) -> None:
    """What `most_skinny_rows` would compile for weights of these shapes, one after the other."""
    rows = [weight.new_empty(num_rows, weight.shape[1]) for weight in weights for num_rows in timed_rows(weight)]
    if rows:
        pairs = [(x, w) for x in rows for w in weights if x.shape[1] == w.shape[1]]
        compile_ahead(lambda: [skinny_linear(x, w, arrivals=arrivals) for x, w in pairs])


def timed_rows(weight: Tensor) -> tuple[int, ...]:
    """For which numbers of rows the kernel is compared; none that it does not know this weight's type and device."""
    if not weight.is_cuda or weight.dtype not in (torch.bfloat16, torch.float32):
        return ()
    return _TIMED_ROWS if weight.dtype.itemsize == 2 else _TIMED_ROWS[:-1]


def _seconds(multiply: Multiply, x: Tensor, weights: Sequence[Tensor]) -> float:
    """Of one product."""
    multiply(x, weights[0])
    return seconds_by_replay([partial(multiply, x, weight) for weight in weights], _ROUNDS)
