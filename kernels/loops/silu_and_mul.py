"""kernels/silu_and_mul.py as a compiled loop: one pass, rounded once."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from torch import Tensor

from kernels.loops.bf16 import bf16_at, count_up, exp, int64_at, narrow, widen
from kernels.loops.team import Loop

_FEW_NUMBERS = 32_000  # some 16 microseconds on one core: no more than another thread's start may take


@Loop
@no_type_check
def _silu_and_mul(arguments):
    """Item: one row."""
    a = int64_at(arguments, 5)
    num_rows, size = a[1], a[4]
    row = count_up(arguments)
    while row < num_rows:
        gate = bf16_at(a[2] + 4 * row * size, size)
        up = bf16_at(a[2] + 4 * row * size + 2 * size, size)
        out = bf16_at(a[3] + 2 * row * size, size)
        for i in range(size):
            z = widen(gate[i])
            out[i] = narrow(z / (np.float32(1) + exp(-z)) * widen(up[i]))
        row = count_up(arguments)


def silu_and_mul(x: Tensor) -> Tensor:
    """bf16, contiguous."""
    assert x.is_contiguous()
    num_rows, width = x.shape
    out = torch.empty((num_rows, width // 2), dtype=x.dtype)
    _silu_and_mul(out.numel() > _FEW_NUMBERS, num_rows, x.data_ptr(), out.data_ptr(), width // 2)
    return out
