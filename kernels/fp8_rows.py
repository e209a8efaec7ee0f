"""Rows rounded to fp8, each with its own scale, for tensor cores that multiply fp8. Alone, or in the launch that
computes the rows, which saves writing and reading them in 16 bits, and a launch.

    scales[m] = max(max_k |x[m, k]|, 1e-12) / 448        values[m, k] = x[m, k] / scales[m], to e4m3

    fp8_rows:           of x
    fp8_silu_and_mul:   of silu_and_mul(x)                       (kernels/silu_and_mul.py)
    fp8_add_rms_norm:   of out, where out, sum = add_rms_norm(x, residual, weight, eps); also returns sum
                                                                 (kernels/rms_norm.py)

Tensors (M rows, K elements):
    x                 [M, K]      bf16 or fp32, last stride 1; rows may be strided
    x                 [M, 2 * K]  in fp8_silu_and_mul, as there: contiguous
    x, residual, weight           in fp8_add_rms_norm, as there: contiguous. Consumes `residual`; sum [M, K] like x
    returns Fp8Rows: values [M, K] float8_e4m3fn, contiguous; scales [M, 1] fp32

Rounding: as if the operations ran one after another: first to x's dtype, then to fp8; but a norm's squares may be
summed in another order. fp32 throughout, round to nearest. K up to 32768. M may be 0. Not differentiable.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, start_dependents, wait_for_inputs
from kernels.optional_triton import tl, triton
from kernels.quantized_weight import FP8, FP8_MAX, SMALLEST, quantize_fp8
from kernels.rms_norm import add_rms_norm_reference
from kernels.silu_and_mul import silu_and_mul_reference

_MAX_SIZE = 32768


class Fp8Rows(NamedTuple):
    """values [M, K] e4m3 and scales [M, 1] fp32."""

    values: Tensor
    scales: Tensor

    @classmethod
    def empty(cls, num_rows: int, size: int, device: torch.device) -> Fp8Rows:
        assert size <= _MAX_SIZE
        values = torch.empty((num_rows, size), dtype=FP8, device=device)
        return cls(values, torch.empty((num_rows, 1), dtype=torch.float32, device=device))


def fp8_rows_reference(x: Tensor) -> Fp8Rows:
    return Fp8Rows(*quantize_fp8(x))


def fp8_silu_and_mul_reference(x: Tensor) -> Fp8Rows:
    return fp8_rows_reference(silu_and_mul_reference(x))


def fp8_add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Fp8Rows, Tensor]:
    normed, total = add_rms_norm_reference(x, residual, weight, eps)
    return fp8_rows_reference(normed), total


@triton.jit
@no_type_check
def _store_row(
    x, values_ptr, scales_ptr, row, size, element, is_element, SMALLEST: tl.constexpr, FP8_MAX: tl.constexpr
):
    """x [BLOCK] fp32, 0 where there is no element: one row in one program's registers."""
    scale = tl.maximum(tl.max(tl.abs(x), 0), SMALLEST) / FP8_MAX
    tl.store(values_ptr + row * size + element, (x / scale).to(values_ptr.dtype.element_ty), mask=is_element)
    tl.store(scales_ptr + row, scale)


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
    """Program: one row, as in the kernels below."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    element = tl.arange(0, BLOCK)
    is_element = element < size
    x = tl.load(x_ptr + row * x_stride_row + element, mask=is_element, other=0.0).to(tl.float32)
    _store_row(x, values_ptr, scales_ptr, row, size, element, is_element, SMALLEST, FP8_MAX)


@triton.jit
@no_type_check
def _fp8_silu_and_mul_kernel(
    x_ptr,
    values_ptr,
    scales_ptr,
    size,
    SMALLEST: tl.constexpr,
    FP8_MAX: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    element = tl.arange(0, BLOCK)
    is_element = element < size
    gate = tl.load(x_ptr + row * 2 * size + element, mask=is_element, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * size + size + element, mask=is_element, other=0.0).to(tl.float32)
    gated = (gate / (1 + tl.exp(-gate)) * up).to(x_ptr.dtype.element_ty).to(tl.float32)
    _store_row(gated, values_ptr, scales_ptr, row, size, element, is_element, SMALLEST, FP8_MAX)


@triton.jit
@no_type_check
def _fp8_add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    values_ptr,
    scales_ptr,
    size,
    eps,
    SMALLEST: tl.constexpr,
    FP8_MAX: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """The sum overwrites the residual."""
    start_dependents(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    element = tl.arange(0, BLOCK)
    is_element = element < size
    offset = row * size + element
    x = tl.load(x_ptr + offset, mask=is_element, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + offset, mask=is_element, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + element, mask=is_element, other=0.0).to(tl.float32)
    rounded = (x + residual).to(residual_ptr.dtype.element_ty)
    tl.store(residual_ptr + offset, rounded, mask=is_element)
    total = rounded.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(total * total, 0) / size + eps)
    normed = (total * scale * weight).to(x_ptr.dtype.element_ty).to(tl.float32)
    _store_row(normed, values_ptr, scales_ptr, row, size, element, is_element, SMALLEST, FP8_MAX)


def fp8_rows_triton(x: Tensor) -> Fp8Rows:
    """On CUDA tensors, or on any in Triton's interpreter; so for every `_triton` here."""
    num_rows, size = x.shape
    assert x.stride(-1) == 1 or not num_rows
    rows = Fp8Rows.empty(num_rows, size, x.device)
    if rows.values.numel():
        _fp8_rows_kernel[(num_rows,)](x, *rows, size, x.stride(0), **_launch(size, x.device, 512))
    return rows


def fp8_silu_and_mul_triton(x: Tensor) -> Fp8Rows:
    num_rows, width = x.shape
    assert x.is_contiguous() and width % 2 == 0
    rows = Fp8Rows.empty(num_rows, width // 2, x.device)
    if rows.values.numel():
        _fp8_silu_and_mul_kernel[(num_rows,)](x, *rows, width // 2, **_launch(width // 2, x.device, 512))
    return rows


def fp8_add_rms_norm_triton(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Fp8Rows, Tensor]:
    num_rows, size = x.shape
    assert x.is_contiguous() and residual.is_contiguous() and weight.is_contiguous() and weight.shape == (size,)
    assert x.shape == residual.shape and x.dtype == residual.dtype and weight.dtype in (x.dtype, torch.float32)
    rows = Fp8Rows.empty(num_rows, size, x.device)
    if rows.values.numel():
        _fp8_add_rms_norm_kernel[(num_rows,)](x, residual, weight, *rows, size, eps, **_launch(size, x.device, 256))
    return rows, residual


def _launch(size: int, device: torch.device, elements_per_warp: int) -> dict[str, float]:
    block = triton.next_power_of_2(size)
    num_warps = max(1, min(16, block // elements_per_warp))
    numbers = {"SMALLEST": SMALLEST, "FP8_MAX": FP8_MAX, "BLOCK": block, "num_warps": num_warps}
    return numbers | dependent_launch(device)


def fp8_rows(x: Tensor) -> Fp8Rows:
    return fp8_rows_triton(x) if x.is_cuda else fp8_rows_reference(x)


def fp8_silu_and_mul(x: Tensor) -> Fp8Rows:
    return fp8_silu_and_mul_triton(x) if x.is_cuda else fp8_silu_and_mul_reference(x)


def fp8_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Fp8Rows, Tensor]:
    if not x.is_cuda:
        return fp8_add_rms_norm_reference(x, residual, weight, eps)
    return fp8_add_rms_norm_triton(x, residual, weight, eps)
