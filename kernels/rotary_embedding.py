"""Rotary position embedding (Su et al. 2021), half-split pairs as in Llama, in place.

    x[i] = x[i] * cos[i] + x[(i + R/2) mod R] * sin[i]      for i < R, with the old x on the right

where the tables hold the cosine of each pair's angle twice, and its sine as (-sine, +sine). Dimensions from R on are
unchanged.

Tensors (T tokens, N heads, D head dim, R <= D rotated dims, even):
    x    [T, N, D]  bf16 or fp32; any strides of heads and tokens, last stride 1. Written in place. Query and key
                    heads of a packed projection are adjacent, so one call may rotate both.
    cos  [T, R]     fp32, contiguous: (c, c)
    sin  [T, R]     fp32, contiguous: (-s, s)
cos and sin are the tables' rows at each token's position, gathered once per step for all layers; they include any
attention scaling factor.

Rounding: fp32 inside, rounded once when written. T may be 0. The reference is differentiable (x must not be a leaf).
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton


def rotary_embedding_reference(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    half = cos.shape[-1] // 2
    turning = x[..., : 2 * half]
    exact = turning.float()
    swapped = torch.cat((exact[..., half:], exact[..., :half]), dim=-1)
    turning.copy_((exact * cos[:, None]).addcmul_(swapped, sin[:, None]))


@triton.jit
@no_type_check
def _rotary_embedding_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    x_stride_token,
    x_stride_head,
    num_heads,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Program (token, some heads). Both halves are read before either is written."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dim = tl.arange(0, BLOCK_HALF)
    is_dim = dim < HALF
    is_pair = (head < num_heads)[:, None] & is_dim[None, :]
    first_ptr = x_ptr + token * x_stride_token + head.to(tl.int64)[:, None] * x_stride_head + dim[None, :]
    table = token * (2 * HALF) + dim
    cos_first = tl.load(cos_ptr + table, mask=is_dim, other=0.0)[None, :]
    sin_first = tl.load(sin_ptr + table, mask=is_dim, other=0.0)[None, :]
    cos_second = tl.load(cos_ptr + table + HALF, mask=is_dim, other=0.0)[None, :]
    sin_second = tl.load(sin_ptr + table + HALF, mask=is_dim, other=0.0)[None, :]
    first = tl.load(first_ptr, mask=is_pair, other=0.0).to(tl.float32)
    second = tl.load(first_ptr + HALF, mask=is_pair, other=0.0).to(tl.float32)
    dtype = x_ptr.dtype.element_ty
    tl.store(first_ptr, (first * cos_first + second * sin_first).to(dtype), mask=is_pair)
    tl.store(first_ptr + HALF, (second * cos_second + first * sin_second).to(dtype), mask=is_pair)


def rotary_embedding_triton(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_tokens, num_heads, head_dim = x.shape
    rotary_dim = cos.shape[-1]
    assert x.stride(-1) == 1 and head_dim >= rotary_dim and rotary_dim % 2 == 0
    assert cos.shape == sin.shape == (num_tokens, rotary_dim)
    assert cos.dtype == sin.dtype == torch.float32 and cos.is_contiguous() and sin.is_contiguous()
    if num_tokens == 0:
        return
    block_half = triton.next_power_of_2(rotary_dim // 2)
    block_heads = max(1, 1024 // block_half)
    grid = (num_tokens, triton.cdiv(num_heads, block_heads))
    _rotary_embedding_kernel[grid](
        x,
        cos,
        sin,
        x.stride(0),
        x.stride(1),
        num_heads,
        HALF=rotary_dim // 2,
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=block_half,
        num_warps=4,
    )


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    if not x.is_cuda:  # no checks: torch makes its own, and on a CPU they would take time of the step
        return rotary_embedding_reference(x, cos, sin)
    return rotary_embedding_triton(x, cos, sin)
