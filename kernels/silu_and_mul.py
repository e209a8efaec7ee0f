"""Gated activation of a merged gate-up projection (SwiGLU, Shazeer 2020).

    out[t, i] = silu(x[t, i]) * x[t, I + i]        silu(z) = z / (1 + exp(-z))

Tensors (T tokens, I intermediate size):
    x        [T, 2 * I]  bf16 or fp32, contiguous: gate, then up
    returns  [T, I]      like x, contiguous, new

Rounding: the kernel computes in fp32 and rounds once; the reference also rounds silu(gate) to x's dtype, as
transformers does. T may be 0. The reference is differentiable.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul_reference(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return F.silu(x[:, :half]) * x[:, half:]


def silu_and_mul(x: Tensor) -> Tensor:
    if not x.is_cuda:  # without the checks: torch makes its own, and on a CPU they would be a part of the step
        return silu_and_mul_reference(x)
    assert x.is_contiguous() and x.shape[-1] % 2 == 0
    return silu_and_mul_reference(x)
