"""Up to how many rows a weight is multiplied by `skinny_linear` (kernels/skinny_linear.py) and not by cuBLAS.

A decode has a row for each sequence, so its products have few, and then the kernel is often faster than cuBLAS, which
F.linear calls. How many are few depends on the weight's shape and on the GPU. So when a model is loaded, both are timed
with its own weights, once for each shape, and each `Linear` is told its bound (`skinny_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.replay_timing import seconds_by_replay
from kernels.skinny_linear import FEW_ROWS, MAX_ROWS, skinny_linear

_TIMED_ROWS = (1, 8, FEW_ROWS, MAX_ROWS)
"""MAX_ROWS in 16 bits only: for fp32 the kernel multiplies without matrix units."""
_TIMED_BYTES = 256 << 20  # several times a GPU's L2 cache
_MAX_LAUNCHES = 64
_ROUNDS = 5
_MAY_COST = 1.08
"""skinny_linear is taken even if it alone takes this much longer than cuBLAS: the kernel after it starts a microsecond
or two earlier (kernels/dependent_launch.py), and timing the products alone does not show that."""

Multiply = Callable[[Tensor, Tensor], Tensor]


def most_skinny_rows(weights: Sequence[Tensor], arrivals: Tensor | None) -> int:
    """The most rows for which skinny_linear is the better one; 0 if it never is, or cannot run (on a CPU, say).

    weights: of one shape, type and device. arrivals: what skinny_linear takes by that name. The timing takes some
    milliseconds, if what `launch_skinny` launches is compiled, and seconds else.
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


def launch_skinny(weights: Sequence[Tensor], arrivals: Tensor) -> None:
    """Launch what is timed, once for each of these weights: to have it compiled ahead."""
    for weight in weights:
        for num_rows in timed_rows(weight):
            skinny_linear(weight.new_empty(num_rows, weight.shape[1]), weight, arrivals=arrivals)


def timed_rows(weight: Tensor) -> tuple[int, ...]:
    """The numbers of rows at which kernel and cuBLAS are compared; () if the kernel cannot multiply by this weight."""
    if not weight.is_cuda or weight.dtype not in (torch.bfloat16, torch.float32):
        return ()
    return _TIMED_ROWS if weight.dtype.itemsize == 2 else _TIMED_ROWS[:-1]


def _seconds(multiply: Multiply, x: Tensor, weights: Sequence[Tensor]) -> float:
    """How long one product takes."""
    multiply(x, weights[0])
    return seconds_by_replay([partial(multiply, x, weight) for weight in weights], _ROUNDS)
