"""The second half of low-rank adapters (LoRA, Hu et al. 2021), many in one batch (Punica's SGMV, Chen et al. 2023):

    y[t, n of p] += sum_r B[slot[t], p][n, r] * shrunk[t, p, r]

Tensors (T tokens, P parts, R the highest rank served, N output features of all parts):
    shrunk       [T, P, R]     like y or fp32, contiguous: from kernels/lora_shrink.py
    token_slots, tables        kernels/lora_tensors.py
    y            [T, N]        bf16, fp16 or fp32, last stride 1; rows may be strided. Written in place, only where a
                               token has an adapter with this part

Rounding: shrunk is rounded to y's dtype; the rest is in fp32 (never tf32), rounded once at the end. The reference
rounds the product before it adds it. A token's result does not depend on the other tokens, nor on their number within 1
to 256, or above. Offsets are int64. T may be 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import torch
from torch import Tensor

from kernels.cpu_loops import loops_for
from kernels.dependent_launch import dependent_launch, start_dependents, wait_for_inputs
from kernels.lora_tensors import MAX_PARTS, LoraTables, TokenSlots, check_lora_tensors, rows_of_pool, tokens_by_slot
from kernels.lora_tiles import BLOCK_RANK, has_few_tokens, known_alignment, tile_tokens, tiles_of
from kernels.optional_triton import tl, triton


def lora_expand_reference(shrunk: Tensor, token_slots: TokenSlots, tables: LoraTables, y: Tensor) -> None:
    rounded = shrunk.to(y.dtype)
    parts = y.split(tables.out_features, 1)
    for slot, tokens in tokens_by_slot(token_slots):
        ranks, offsets = tables.ranks[slot].tolist(), tables.b_offsets[slot].tolist()
        for part, (rank, columns) in enumerate(zip(ranks, parts, strict=True)):
            if rank:
                b_transposed = rows_of_pool(tables.pool, offsets[part][:rank], columns.shape[1])
                columns.index_add_(0, tokens, rounded[tokens, part, :rank] @ b_transposed)


@dataclass(frozen=True, slots=True)
class ExpandConfig:
    """block_n: output features at once. num_strips: how many such strips a program computes, one after another."""

    block_n: int
    num_warps: int
    num_strips: int = 1


def expand_config(num_tokens: int) -> ExpandConfig:
    """The best of 8 configs on one H200 (torch 2.11, triton 3.6) for Llama-8B's output, rank 16, us: 1 row 1.6 (with
    128 features at once 1.4); 64 rows of 1, 8 and 64 adapters 2.1, 2.4 and 5.1 (2.6, 2.7 and 5.0); 2048 rows of 8
    adapters 13.3 (in one strip 14.9)."""
    return (
        ExpandConfig(256, num_warps=4) if has_few_tokens(num_tokens) else ExpandConfig(128, num_warps=4, num_strips=2)
    )


@triton.jit
@no_type_check
def expanded(
    shrunk, offset, rank, offset_ptrs, shrunk_ptrs, is_token, feature_ptrs, is_feature, ALIGNMENT: tl.constexpr
):
    """[tokens, features] fp32: a part's B times the shrunk values. shrunk, offset: for the first ranks, loaded at the
    beginning. feature_ptrs: the features in a row of B that would start at the pool's beginning."""
    BLOCK_RANK: tl.constexpr = shrunk.shape[1]
    rank_of_block = tl.arange(0, BLOCK_RANK)
    is_b = (rank_of_block < rank)[:, None] & is_feature[None, :]
    b = tl.load(feature_ptrs[None, :] + offset[:, None], mask=is_b, other=0.0)
    acc = tl.dot(shrunk.to(b.dtype), b, input_precision="ieee")
    for start in tl.range(BLOCK_RANK, rank, BLOCK_RANK, num_stages=1):
        is_rank = start + rank_of_block < rank
        offset = tl.multiple_of(tl.load(offset_ptrs + start, mask=is_rank, other=0), ALIGNMENT)
        b_ptrs = feature_ptrs[None, :] + offset[:, None]
        b = tl.load(b_ptrs, mask=is_rank[:, None] & is_feature[None, :], other=0.0)
        shrunk = tl.load(shrunk_ptrs + start, mask=is_token[:, None] & is_rank[None, :], other=0.0)
        acc = tl.dot(shrunk.to(b.dtype), b, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["num_tokens", "num_parts"])
@no_type_check
def _lora_expand_kernel(
    shrunk_ptr,
    tiles_ptr,
    pool_ptr,
    offsets_ptr,
    ranks_ptr,
    y_ptr,
    num_tokens,
    num_parts,
    max_rank,
    features_0,
    features_1,
    features_2,  # 0 if there is no such part
    offsets_stride_slot,
    offsets_stride_part,
    ranks_stride_slot,
    ranks_stride_part,
    y_stride_token,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STRIPS: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (group of strips, tile): features of one part. All addresses are known before the inputs are: tables and
    tiles come by a copy."""
    start_dependents(PDL)
    slot, token = tile_tokens(tiles_ptr, tl.program_id(1), BLOCK_TOKENS)
    if (slot <= 0) & (tl.program_id(1) > 0):
        return
    is_token = token >= 0
    FEATURES: tl.constexpr = BLOCK_N * STRIPS
    group, groups_0, groups_1 = tl.program_id(0), tl.cdiv(features_0, FEATURES), tl.cdiv(features_1, FEATURES)
    in_0, in_1 = group < groups_0, group < groups_0 + groups_1
    part = tl.where(in_0, 0, tl.where(in_1, 1, 2)).to(tl.int64)
    num_features = tl.where(in_0, features_0, tl.where(in_1, features_1, features_2))
    first_feature = tl.where(in_0, 0, tl.where(in_1, features_0, features_0 + features_1))
    first_group = tl.where(in_0, 0, tl.where(in_1, groups_0, groups_0 + groups_1))
    rank_of_block = tl.arange(0, BLOCK_RANK)
    offset_ptrs = offsets_ptr + slot * offsets_stride_slot + part * offsets_stride_part + rank_of_block
    most_ranks = tl.where(slot > 0, max_rank, 0)
    rank = tl.load(ranks_ptr + slot * ranks_stride_slot + part * ranks_stride_part, mask=most_ranks > 0, other=0)
    # Loads the first rows' offsets without waiting for the rank: up to max_rank they are in the table.
    offset = tl.multiple_of(tl.load(offset_ptrs, mask=rank_of_block < most_ranks, other=0), ALIGNMENT)
    shrunk_ptrs = shrunk_ptr + ((token * num_parts + part) * max_rank)[:, None] + rank_of_block[None, :]
    begin = (group - first_group) * FEATURES
    y_row_ptrs = y_ptr + token[:, None] * y_stride_token + first_feature
    wait_for_inputs(PDL)

    if rank == 0:
        return
    shrunk = tl.load(shrunk_ptrs, mask=is_token[:, None] & (rank_of_block < rank)[None, :], other=0.0)
    for start in tl.static_range(0, FEATURES, BLOCK_N):
        feature = begin + start + tl.arange(0, BLOCK_N)
        is_feature = feature < num_features
        is_y = is_token[:, None] & is_feature[None, :]
        y_ptrs = y_row_ptrs + feature[None, :]
        y = tl.load(y_ptrs, mask=is_y, other=0.0)
        added = expanded(
            shrunk, offset, rank, offset_ptrs, shrunk_ptrs, is_token, pool_ptr + feature, is_feature, ALIGNMENT
        )
        tl.store(y_ptrs, (y.to(tl.float32) + added).to(y.dtype), mask=is_y)


def lora_expand_triton(
    shrunk: Tensor, token_slots: TokenSlots, tables: LoraTables, y: Tensor, config: ExpandConfig | None = None
) -> None:
    """On CUDA tensors, or on any in Triton's interpreter. `config` is for measuring: None takes the table's."""
    check_lora_tensors(y, token_slots, tables)
    num_tokens, num_parts, max_rank = y.shape[0], tables.num_parts, tables.max_rank
    assert y.shape[1] == sum(tables.out_features)
    assert shrunk.shape == (num_tokens, num_parts, max_rank)
    assert shrunk.dtype in (y.dtype, torch.float32) and shrunk.is_contiguous()
    tiles, config = tiles_of(token_slots), config or expand_config(num_tokens)
    if not y.numel() or not len(tiles):
        return
    group = config.block_n * config.num_strips
    num_groups = sum(triton.cdiv(features, group) for features in tables.out_features)
    _lora_expand_kernel[num_groups, len(tiles)](
        shrunk,
        tiles,
        tables.pool,
        tables.b_offsets,
        tables.ranks,
        y,
        num_tokens,
        num_parts,
        max_rank,
        *tables.out_features,
        *[0] * (MAX_PARTS - num_parts),
        *tables.b_offsets.stride()[:2],
        *tables.ranks.stride(),
        y.stride(0),
        BLOCK_TOKENS=tiles.shape[1] - 1,
        BLOCK_RANK=BLOCK_RANK,
        BLOCK_N=config.block_n,
        STRIPS=config.num_strips,
        ALIGNMENT=known_alignment(tables),
        num_warps=config.num_warps,
        **dependent_launch(y.device),
    )


def lora_expand(shrunk: Tensor, token_slots: TokenSlots, tables: LoraTables, y: Tensor) -> None:
    if y.is_cuda:
        return lora_expand_triton(shrunk, token_slots, tables, y)
    loops = loops_for(y)
    expand = lora_expand_reference if loops is None else loops.lora_expand
    return expand(shrunk, token_slots, tables, y)
