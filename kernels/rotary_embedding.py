"""Rotary position embedding (Su et al. 2021), half-split pairs as in Llama, in place.

    x[i] = x[i] * cos[i] + x[(i + R/2) mod R] * sin[i]      for i < R, every x on the right before the change

where the table holds the cosine of each pair's angle twice and its sine as (-sine, +sine). Dimensions from R on stay
as they are.

Tensors (T tokens, N heads, D head dim, R <= D rotated dims, even):
    x    [T, N, D]  bf16 or fp32; strides of heads and tokens free, last stride 1. Written in place. Query and key
                    heads of a packed projection adjoin, so one call may rotate both.
    cos  [T, R]     fp32, contiguous: (c, c). The table's rows of each token's position, gathered once a step for
    sin  [T, R]     fp32, contiguous: (-s, s). all layers; any attention scaling factor is already in them.

Rounding: fp32 inside, rounded once when written. T may be 0. The reference is differentiable (x must not be a leaf).
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_embedding_reference(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    rotary_dim = cos.shape[-1]
    turning = x[..., :rotary_dim]
    exact = turning.float()
    swapped = exact.roll(rotary_dim // 2, -1)
    turning.copy_(torch.addcmul(exact * cos[:, None], swapped, sin[:, None]))


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    if not x.is_cuda:  # without the checks: torch makes its own, and on a CPU they would be a part of the step
        return rotary_embedding_reference(x, cos, sin)
    assert x.stride(-1) == 1 and x.shape[-1] >= cos.shape[-1] and cos.shape[-1] % 2 == 0
    assert cos.shape == sin.shape and cos.shape[0] == x.shape[0]
    assert cos.dtype == sin.dtype == torch.float32 and cos.is_contiguous() and sin.is_contiguous()
    return rotary_embedding_reference(x, cos, sin)
