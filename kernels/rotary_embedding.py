"""Rotary position embedding (Su et al. 2021), half-split pairs as in Llama, in place.

    for i < R/2:  x[i]       = x[i] * cos[i] - x[i + R/2] * sin[i]
                  x[i + R/2] = x[i + R/2] * cos[i] + x[i] * sin[i]
    dimensions from R on stay as they are.

Tensors (T tokens, N heads, D head dim, R <= D rotated dims, even):
    x    [T, N, D]   bf16 or fp32; strides of heads and tokens free, last stride 1. Written in place. Query and key
                     heads of a packed projection adjoin, so one call may rotate both.
    cos  [T, R / 2]  fp32, contiguous: the table's rows of each token's position, gathered once a step for all
    sin  [T, R / 2]  layers; any attention scaling factor is already in them.

Rounding: fp32 inside, rounded once when written. T may be 0. The reference is differentiable (x must not be a leaf).
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_embedding_reference(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    cos, sin = cos[:, None], sin[:, None]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    x[..., : 2 * half].copy_(rotated)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    assert x.stride(-1) == 1 and x.shape[-1] >= 2 * cos.shape[-1]
    assert cos.shape == sin.shape and cos.shape[0] == x.shape[0]
    assert cos.dtype == sin.dtype == torch.float32 and cos.is_contiguous() and sin.is_contiguous()
    rotary_embedding_reference(x, cos, sin)
