"""Rows rounded to fp8, each by a scale of its own: what matrix units that multiply fp8 take.

    scales[m] = max(max_k |x[m, k]|, 1e-12) / 448        values[m, k] = x[m, k] / scales[m], to e4m3

Tensors (M rows, K elements):
    x        [M, K]  bf16 or fp32, last stride 1; rows may be strided
    returns  values [M, K] float8_e4m3fn, contiguous; scales [M, 1] fp32

fp32 throughout, rounded once, to the nearest. M may be 0. Not differentiable.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, start_dependents, wait_for_inputs
from kernels.optional_triton import tl, triton
from kernels.quantized_weight import FP8, FP8_MAX, SMALLEST, quantize_fp8


def fp8_rows_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    return quantize_fp8(x)


@triton.jit
@no_type_check
def _fp8_rows_kernel(
    x_ptr,
    values_ptr,
    scales_ptr,
    size,
    x_stride_row,
    SMALLEST: tl.constexpr,
    FP8_MAX: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: a row, kept in registers between its two uses."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    element = tl.arange(0, BLOCK)
    is_element = element < size
    x = tl.load(x_ptr + row * x_stride_row + element, mask=is_element, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0), SMALLEST) / FP8_MAX
    tl.store(values_ptr + row * size + element, (x / scale).to(values_ptr.dtype.element_ty), mask=is_element)
    tl.store(scales_ptr + row, scale)


def fp8_rows_triton(x: Tensor) -> tuple[Tensor, Tensor]:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_rows, size = x.shape
    assert x.stride(-1) == 1 or not num_rows
    values = torch.empty((num_rows, size), dtype=FP8, device=x.device)
    scales = torch.empty((num_rows, 1), dtype=torch.float32, device=x.device)
    if values.numel():
        block = triton.next_power_of_2(size)
        _fp8_rows_kernel[(num_rows,)](
            x,
            values,
            scales,
            size,
            x.stride(0),
            SMALLEST=SMALLEST,
            FP8_MAX=FP8_MAX,
            BLOCK=block,
            num_warps=max(1, min(16, block // 512)),
            **dependent_launch(x.device),
        )
    return values, scales


def fp8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    return fp8_rows_triton(x) if x.is_cuda else fp8_rows_reference(x)
