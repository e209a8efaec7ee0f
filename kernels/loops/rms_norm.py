"""kernels/rms_norm.py as compiled loops: two passes over a row instead of torch's five or seven operations."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from torch import Tensor

from kernels.loops.bf16 import bf16_at, count_up, float_from_bits, int64_at, narrow, widen
from kernels.loops.team import Loop, float_bits

_FEW_NUMBERS = 40_000  # some 15 microseconds on one core


@Loop
@no_type_check
def _rms_norm(arguments):
    """Item: one row."""
    a = int64_at(arguments, 7)
    num_rows, size, eps = a[1], a[5], float_from_bits(np.int32(a[6]))
    weight = bf16_at(a[3], size)
    row = count_up(arguments)
    while row < num_rows:
        x, out = bf16_at(a[2] + 2 * row * size, size), bf16_at(a[4] + 2 * row * size, size)
        squares = np.float32(0)
        for i in range(size):
            squares += widen(x[i]) * widen(x[i])
        scale = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
        for i in range(size):
            out[i] = narrow(widen(x[i]) * scale * widen(weight[i]))
        row = count_up(arguments)


@Loop
@no_type_check
def _add_rms_norm(arguments):
    """Item: one row."""
    a = int64_at(arguments, 8)
    num_rows, size, eps = a[1], a[6], float_from_bits(np.int32(a[7]))
    weight = bf16_at(a[4], size)
    row = count_up(arguments)
    while row < num_rows:
        offset = 2 * row * size
        x, total, out = bf16_at(a[2] + offset, size), bf16_at(a[3] + offset, size), bf16_at(a[5] + offset, size)
        squares = np.float32(0)
        for i in range(size):
            rounded = narrow(widen(x[i]) + widen(total[i]))
            total[i] = rounded
            squares += widen(rounded) * widen(rounded)
        scale = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
        for i in range(size):
            out[i] = narrow(widen(total[i]) * scale * widen(weight[i]))
        row = count_up(arguments)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """bf16, all contiguous."""
    assert x.is_contiguous() and weight.is_contiguous()
    size, out = x.shape[-1], torch.empty_like(x)
    _rms_norm(
        x.numel() > _FEW_NUMBERS,
        x.numel() // size,
        x.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        size,
        float_bits(eps),
    )
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """bf16, all contiguous. The sum overwrites the residual."""
    assert x.is_contiguous() and residual.is_contiguous() and weight.is_contiguous() and x.shape == residual.shape
    size, out = x.shape[-1], torch.empty_like(x)
    _add_rms_norm(
        x.numel() > _FEW_NUMBERS,
        x.numel() // size,
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        size,
        float_bits(eps),
    )
    return out, residual
