"""Root-mean-square norm, alone or with the residual added first (Zhang and Sennrich 2019; pre-norm Llama).

    rms_norm:      out = x / sqrt(mean(x^2) + eps) * weight
    add_rms_norm:  sum = x + residual;  out = rms_norm(sum)

Tensors (T any leading sizes, C the normed size):
    x         [T..., C]  bf16 or fp32, last stride 1; rows may be strided (a view of a packed projection)
    residual  [T..., C]  like x, contiguous
    weight    [C]        like x, contiguous
    returns   [T..., C]  like x, contiguous, new; add_rms_norm returns (out, sum)

`add_rms_norm` consumes `residual`: the sum may take its storage, so use the returned one only.
Rounding: the sum is rounded to x's dtype (it is the next residual) and read back; the rest is fp32, rounded once at
the end. T may be 0. The references are differentiable.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if not x.is_cuda:  # without the checks: torch makes its own, and on a CPU they would be a part of the step
        return rms_norm_reference(x, weight, eps)
    assert x.stride(-1) == 1 and weight.is_contiguous() and weight.shape == x.shape[-1:]
    return rms_norm_reference(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if not x.is_cuda:
        return add_rms_norm_reference(x, residual, weight, eps)
    assert x.is_contiguous() and residual.is_contiguous() and weight.is_contiguous()
    assert x.shape == residual.shape and x.dtype == residual.dtype == weight.dtype
    return add_rms_norm_reference(x, residual, weight, eps)
