"""Rows of blocks in the order in which the matrix unit takes them: what kernels/mxfp4_product.py reads where several
rows meet the same weights.

As rows lie, the threads of a warp that read a chunk of eight of them read from 32 places at once, in every warp of
every program anew. Arranged, a warp reads 512 bytes from one place, and need not sort them.

    out[b, c, 2 h + p, m, 8 q + 2 i + e] = row(b, m)[128 c + 32 q + 16 h + 4 i + 2 e + p]

of its 4 groups of 32 elements (q), 2 halves (h), 4 words (i), 2 places in a word (e), even and odd elements (p).

Tensors (T rows in B blocks, C = K / 128, rounded up):
    x        [T, K]           bf16, last stride 1; rows may be strided
    blocks                    of kernels/expert_blocks.py
    top_k                     row(b, m) is x[pair / top_k] of the block's pair m
    returns  [B, C, 4, M, 32] like x, contiguous, new; zeros where a block is padded and behind K; undefined in blocks
                              that nobody has

Offsets are int64. T may be 0.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.expert_blocks import ExpertBlocks
from kernels.optional_triton import tl, triton

CHUNK = 128


def arrange_rows_reference(x: Tensor, blocks: ExpertBlocks, top_k: int) -> Tensor:
    num_blocks, block_m = blocks.pairs.shape
    num_chunks = -(-x.shape[1] // CHUNK)
    is_there = (blocks.pairs >= 0) & (blocks.block_experts >= 0)[:, None]
    rows = x.new_zeros((num_blocks, block_m, num_chunks * CHUNK))
    rows[..., : x.shape[1]][is_there] = x[blocks.pairs[is_there].long() // top_k]
    parts = rows.view(num_blocks, block_m, num_chunks, 4, 2, 4, 2, 2)  # b m c q h i e p
    return parts.permute(0, 2, 4, 7, 1, 3, 5, 6).reshape(num_blocks, num_chunks, 4, block_m, CHUNK // 4)


@triton.jit
@no_type_check
def _arrange_rows_kernel(
    x_ptr,
    pairs_ptr,
    block_experts_ptr,
    out_ptr,
    x_stride_row,
    size,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (block, chunk)."""
    wait_for_inputs(PDL)
    block, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(block_experts_ptr + block) < 0:
        return
    place = tl.arange(0, BLOCK_M * 128)
    in_word, word, group = place % 2, place // 2 % 4, place // 8 % 4
    row, part = place // 32 % BLOCK_M, place // (32 * BLOCK_M)
    k = chunk * 128 + group * 32 + part // 2 * 16 + word * 4 + in_word * 2 + part % 2
    pair = tl.load(pairs_ptr + block * BLOCK_M + row)
    x_ptrs = x_ptr + (pair // TOP_K).to(tl.int64) * x_stride_row + k
    values = tl.load(x_ptrs, mask=(pair >= 0) & (k < size), other=0.0)
    tl.store(out_ptr + (block * tl.num_programs(1) + chunk) * (BLOCK_M * 128) + place, values)


def arrange_rows_triton(x: Tensor, blocks: ExpertBlocks, top_k: int) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter."""
    assert x.stride(1) == 1
    num_blocks, block_m = blocks.pairs.shape
    num_chunks = -(-x.shape[1] // CHUNK)
    out = torch.empty((num_blocks, num_chunks, 4, block_m, CHUNK // 4), dtype=x.dtype, device=x.device)
    if num_blocks:
        _arrange_rows_kernel[(num_blocks, num_chunks)](
            x,
            blocks.pairs,
            blocks.block_experts,
            out,
            x.stride(0),
            x.shape[1],
            TOP_K=top_k,
            BLOCK_M=block_m,
            num_warps=4,
            **dependent_launch(x.device),
        )
    return out


def arrange_rows(x: Tensor, blocks: ExpertBlocks, top_k: int) -> Tensor:
    run = arrange_rows_triton if x.is_cuda else arrange_rows_reference
    return run(x, blocks, top_k)
