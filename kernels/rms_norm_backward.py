"""Gradient of an RMS norm with a frozen weight (kernels/rms_norm.py), and the norm itself again.

    scale = 1 / sqrt(mean(x^2) + eps);  unit = x * scale
    normed = unit * weight
    x_grad = scale * (g - unit * mean(g * unit))        g = grad * weight

Tensors (T any leading sizes, C the normed size):
    grad, x  [T..., C]  bf16 or fp32; last stride 1. The kernel takes one or two leading sizes and C up to 32768
    weight   [C]        like x, contiguous
    added_to [T..., C]  like x, contiguous, or None: x_grad is added to it in place, and it is returned as x_grad
    returns  (normed, x_grad), each [T..., C], like x, contiguous, new (except added_to)

Training keeps x and recomputes the norm. One pass makes both, and adds the gradient that reaches x along the residual
stream. Rounding: fp32 inside, each rounded once. T may be 0.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

_MAX_SIZE = 32768


def rms_norm_backward_reference(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float, added_to: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    exact = x.float()
    scale = torch.rsqrt(exact.square().mean(-1, keepdim=True).add_(eps))
    unit = exact * scale
    weighted = grad.float() * weight
    mean = (weighted * unit).mean(-1, keepdim=True)
    normed = (unit * weight).to(x.dtype)
    x_grad = weighted.sub_(unit.mul_(mean)).mul_(scale)
    return normed, x_grad.to(x.dtype) if added_to is None else added_to.add_(x_grad)


@triton.jit
@no_type_check
def _rms_norm_backward_kernel(
    grad_ptr,
    x_ptr,
    weight_ptr,
    normed_ptr,
    out_ptr,
    grad_stride_outer,
    grad_stride_inner,
    x_stride_outer,
    x_stride_inner,
    num_inner,
    size,
    eps,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program: one row, number outer * num_inner + inner."""
    row = tl.program_id(0).to(tl.int64)
    outer, inner = row // num_inner, row % num_inner
    column = tl.arange(0, BLOCK)
    is_column = column < size
    x_row_ptr = x_ptr + outer * x_stride_outer + inner * x_stride_inner
    grad_row_ptr = grad_ptr + outer * grad_stride_outer + inner * grad_stride_inner
    x = tl.load(x_row_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    grad = tl.load(grad_row_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(x * x, 0) / size + eps)
    unit = x * scale
    weighted = grad * weight
    mean = tl.sum(weighted * unit, 0) / size
    dtype = out_ptr.dtype.element_ty
    offset = row * size + column
    tl.store(normed_ptr + offset, (unit * weight).to(dtype), mask=is_column)
    x_grad = scale * (weighted - unit * mean)
    if ADDS:
        x_grad += tl.load(out_ptr + offset, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out_ptr + offset, x_grad.to(dtype), mask=is_column)


def rms_norm_backward_triton(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float, added_to: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """On CUDA tensors, or on any in Triton's interpreter."""
    size = x.shape[-1]
    assert x.stride(-1) == grad.stride(-1) == 1 and weight.is_contiguous() and weight.shape == (size,)
    assert x.shape == grad.shape and x.dtype == weight.dtype and 2 <= x.dim() <= 3 and size <= _MAX_SIZE
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x_grad = torch.empty_like(normed) if added_to is None else added_to
    assert x_grad.shape == x.shape and x_grad.dtype == x.dtype and x_grad.is_contiguous()
    if normed.numel():
        block = triton.next_power_of_2(size)
        _rms_norm_backward_kernel[(normed.numel() // size,)](
            grad,
            x,
            weight,
            normed,
            x_grad,
            grad.stride(0),
            grad.stride(-2),
            x.stride(0),
            x.stride(-2),
            x.shape[1] if x.dim() == 3 else 1,
            size,
            eps,
            ADDS=added_to is not None,
            BLOCK=block,
            num_warps=min(16, max(1, block // 256)),
        )
    return normed, x_grad


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float, added_to: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    if not x.is_cuda:
        return rms_norm_backward_reference(grad, x, weight, eps, added_to)
    return rms_norm_backward_triton(grad, x, weight, eps, added_to)
