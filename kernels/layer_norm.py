"""Layer norm, alone or with the residual added first (Ba et al. 2016; OPT, GPT-2).

    layer_norm:      out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias       var over C, not C - 1
    add_layer_norm:  sum = x + residual;  out = layer_norm(sum)

Tensors (T tokens, C the normed size, up to 32768 in the kernel):
    x             [T, C]  bf16 or fp32, contiguous
    residual      [T, C]  like x
    weight, bias  [C]     like x, contiguous
    returns       [T, C]  like x, contiguous, new; add_layer_norm returns (out, sum)

`add_layer_norm` consumes `residual`: the sum may take its storage, so use the returned one only.
Rounding: the sum is rounded to x's dtype (it is the next residual) and read back; the rest is fp32, rounded once at
the end. T may be 0. The references are differentiable.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.optional_triton import tl, triton

_MAX_SIZE = 32768


def layer_norm_reference(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def add_layer_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    total = x + residual
    return layer_norm_reference(total, weight, bias, eps), total


@triton.jit
@no_type_check
def _layer_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, size, eps, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr
):
    """Program: one row. The sum overwrites the residual."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_column = column < size
    offset = row * size + column
    x = tl.load(x_ptr + offset, mask=is_column, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + offset, mask=is_column, other=0.0).to(tl.float32)
        rounded = (x + residual).to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + offset, rounded, mask=is_column)
        x = rounded.to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    centred = tl.where(is_column, x - tl.sum(x, 0) / size, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / size + eps)
    out = centred * scale * weight + bias
    tl.store(out_ptr + offset, out.to(out_ptr.dtype.element_ty), mask=is_column)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    num_tokens, size = x.shape
    assert x.is_contiguous() and weight.is_contiguous() and bias.is_contiguous() and size <= _MAX_SIZE
    assert weight.shape == bias.shape == (size,) and x.dtype == weight.dtype == bias.dtype
    assert residual is None or (residual.is_contiguous() and residual.shape == x.shape and residual.dtype == x.dtype)
    out = torch.empty_like(x)
    if out.numel():
        block = triton.next_power_of_2(size)
        _layer_norm_kernel[(num_tokens,)](
            x,
            x if residual is None else residual,
            weight,
            bias,
            out,
            size,
            eps,
            HAS_RESIDUAL=residual is not None,
            BLOCK=block,
            num_warps=min(16, max(1, block // 256)),
        )
    return out


def layer_norm_triton(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter; so for every `_triton` here."""
    return _launch(x, None, weight, bias, eps)


def add_layer_norm_triton(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return _launch(x, residual, weight, bias, eps), residual


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return (layer_norm_triton if x.is_cuda else layer_norm_reference)(x, weight, bias, eps)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return (add_layer_norm_triton if x.is_cuda else add_layer_norm_reference)(x, residual, weight, bias, eps)
