"""Gated activation of a merged gate-up projection with GELU (GeGLU, Shazeer 2020; Gemma).

    out[t, i] = gelu(x[t, i]) * x[t, I + i]
    gelu(z) = z / 2 * (1 + erf(z / sqrt(2)))                                    approximate = "none"
    gelu(z) = z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 * z^3)))           approximate = "tanh"

Tensors (T tokens, I intermediate size):
    x        [T, 2 * I]  bf16 or fp32, contiguous: gate, then up
    returns  [T, I]      like x, contiguous, new

Rounding: the kernel computes in fp32 and rounds once; the reference also rounds gelu(gate) to x's dtype, as
transformers does. T may be 0. The reference is differentiable.
"""

from __future__ import annotations

from typing import Literal, no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.optional_triton import tl, triton

Approximation = Literal["none", "tanh"]

_BLOCK = 1024  # 4 warps; in bf16 one 16-byte load of gate and of up per thread


def gelu_and_mul_reference(x: Tensor, approximate: Approximation) -> Tensor:
    half = x.shape[-1] // 2
    return F.gelu(x[:, :half], approximate=approximate) * x[:, half:]


@triton.jit
@no_type_check
def _gelu_and_mul_kernel(x_ptr, out_ptr, size, IS_TANH: tl.constexpr, BLOCK: tl.constexpr):
    """Program (token, piece of the row)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < size
    gate = tl.load(x_ptr + token * 2 * size + column, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + token * 2 * size + size + column, mask=is_column, other=0.0).to(tl.float32)
    if IS_TANH:
        # z / 2 * (1 + tanh(y)) = z / (1 + exp(-2 y))
        out = gate / (1 + tl.exp(-1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))) * up
    else:
        out = 0.5 * gate * (1 + tl.erf(gate * 0.7071067811865476)) * up
    tl.store(out_ptr + token * size + column, out.to(out_ptr.dtype.element_ty), mask=is_column)


def gelu_and_mul_triton(x: Tensor, approximate: Approximation) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_tokens, width = x.shape
    assert x.is_contiguous() and width % 2 == 0
    out = torch.empty((num_tokens, width // 2), dtype=x.dtype, device=x.device)
    if out.numel():
        grid = (num_tokens, triton.cdiv(width // 2, _BLOCK))
        _gelu_and_mul_kernel[grid](x, out, width // 2, IS_TANH=approximate == "tanh", BLOCK=_BLOCK, num_warps=4)
    return out


def gelu_and_mul(x: Tensor, approximate: Approximation) -> Tensor:
    return (gelu_and_mul_triton if x.is_cuda else gelu_and_mul_reference)(x, approximate)
