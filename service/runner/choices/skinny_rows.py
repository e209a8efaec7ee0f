"""Up to how many rows a weight is multiplied by `skinny_linear` (kernels/skinny_linear.py) instead of cuBLAS; for
quantized weights, by the kernel in its place (kernels/quantized_linear.py).

Decodes have one row per sequence, so their products have few rows, and then the kernel is often faster than cuBLAS. How
many rows are few depends on the weight's shape and on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from kernels.quantized_linear import multiplies_fp8
from kernels.quantized_weight import QuantizedWeight, Weight
from kernels.skinny_config import FEW_ROWS, MAX_QUANTIZED_ROWS, MAX_ROWS
from service.layers.linear_method import KernelMethod, KernelRows
from service.runner.choices.timer import Timer

_TIMED_ROWS = (1, 8, FEW_ROWS, MAX_ROWS)
"""MAX_ROWS only for 16-bit dtypes: in fp32 the kernel does not use tensor cores."""
_TIMED_QUANTIZED_ROWS = (*_TIMED_ROWS, 128, MAX_QUANTIZED_ROWS)
_TIMED_BYTES = 256 << 20  # several times a GPU's L2 cache
_MAX_LAUNCHES = 64
_MAY_COST = 1.08
"""skinny_linear is chosen even if it alone takes this many times as long as cuBLAS: the kernel after it starts a
microsecond or two earlier (kernels/dependent_launch.py), which timing the products alone does not show."""


def most_skinny_rows(alike: Sequence[KernelMethod], timer: Timer) -> int:
    """The most rows for which skinny_linear is faster; 0 if it never is, or cannot run (on a CPU, say).

    alike: methods of weights of one shape, dtype and device. Timing takes some milliseconds if what `launch_skinny`
    launches is compiled, otherwise seconds.
    """
    first = alike[0].weight
    if not timed_rows(first):
        return 0
    num_weights = min(len(alike), max(1, _TIMED_BYTES // first.nbytes))
    num_rounds = max(1, min(_MAX_LAUNCHES, _TIMED_BYTES // first.nbytes) // num_weights)
    timed = list(alike[:num_weights]) * num_rounds
    by_skinny, by_cublas = ([by_rows(each, rows) for each in timed] for rows in (timed_rows(first)[-1], 0))
    most = 0
    for num_rows in timed_rows(first):
        if num_rows <= FEW_ROWS and isinstance(first, QuantizedWeight) and multiplies_fp8(first):
            most = num_rows  # cuBLAS's way would round x, for less than a tenth of a step's time
            continue
        x = torch.randn(num_rows, first.shape[1], device=first.device, dtype=first.dtype)
        skinny_s, cublas_s = (timer([partial(each.multiply, x) for each in way]) for way in (by_skinny, by_cublas))
        if skinny_s > _MAY_COST * cublas_s:
            break
        most = num_rows
    return most


def launch_skinny(method: KernelMethod) -> None:
    """Launch all that is timed, so that it can be compiled ahead."""
    for num_rows in timed_rows(method.weight):
        for skinny in (num_rows, 0):
            by_rows(method, skinny).multiply(method.weight.new_empty(num_rows, method.weight.shape[1]))


def by_rows(method: KernelMethod, skinny: int) -> KernelMethod:
    return replace(method, choice=KernelRows(skinny=skinny))


def timed_rows(weight: Weight) -> tuple[int, ...]:
    """The numbers of rows at which kernel and cuBLAS are compared; () if the kernel cannot multiply by this weight."""
    if not weight.is_cuda or weight.dtype not in (torch.bfloat16, torch.float32):
        return ()
    if isinstance(weight, QuantizedWeight):
        return _TIMED_QUANTIZED_ROWS
    return _TIMED_ROWS if weight.dtype.itemsize == 2 else _TIMED_ROWS[:-1]
