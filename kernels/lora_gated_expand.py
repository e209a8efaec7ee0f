"""kernels/lora_expand.py for a merged gate and up projection, with the activation (kernels/silu_and_mul.py):

    z         = y + B shrunk, for the two parts, as in lora_expand
    out[t, i] = silu(z[t, i]) * z[t, I + i]

Tensors (T tokens, I intermediate size):
    shrunk, token_slots, tables   as in lora_expand; tables of two parts of I features
    y        [T, 2 * I]           bf16, fp16 or fp32, contiguous: gate, then up; read only
    returns  [T, I]               like y, contiguous, new

Rounding: fp32 throughout, rounded once; the reference also rounds z and silu(gate). A token's result does not depend on
the other tokens, nor on their number within 1 to 256, or above. T may be 0.

For a prompt's tokens y is the largest tensor of a layer: reading and writing it once more would cost more than all that
adapters compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, start_dependents, wait_for_inputs
from kernels.lora_expand import expanded, lora_expand_reference
from kernels.lora_tensors import LoraTables, TokenSlots, check_lora_tensors
from kernels.lora_tiles import BLOCK_RANK, FEW_TOKENS, has_few_tokens, known_alignment, tile_tokens, tiles_of
from kernels.optional_triton import tl, triton
from kernels.silu_and_mul import silu_and_mul_reference


def lora_gated_expand_reference(shrunk: Tensor, token_slots: TokenSlots, tables: LoraTables, y: Tensor) -> Tensor:
    z = y.clone()
    lora_expand_reference(shrunk, token_slots, tables, z)
    return silu_and_mul_reference(z)


@dataclass(frozen=True, slots=True)
class GatedExpandConfig:
    """block_n: output features at once. num_strips: how many such strips a program computes, one after another."""

    block_n: int
    num_warps: int
    num_strips: int = 1


def gated_expand_config(num_tokens: int) -> GatedExpandConfig:
    """The best of 6 configs on one H200 (torch 2.11, triton 3.6) for Llama-8B, rank 16, us, in brackets silu_and_mul
    alone: 1 row 2.5 (1.6); 64 rows of 1, 8 and 64 adapters 5.6, 9.2 and 45.8 (2.4), in one strip 8, 13.6 and 40; 256
    rows of 8 adapters 18.7 (7.2); 2048 rows of 8 adapters 115 (43.5)."""
    if num_tokens <= FEW_TOKENS:
        return GatedExpandConfig(128, num_warps=4)
    if has_few_tokens(num_tokens):
        return GatedExpandConfig(128, num_warps=4, num_strips=2)
    return GatedExpandConfig(64, num_warps=4)


@triton.jit(do_not_specialize=["num_tokens"])
@no_type_check
def _lora_gated_expand_kernel(
    shrunk_ptr,
    tiles_ptr,
    pool_ptr,
    offsets_ptr,
    ranks_ptr,
    y_ptr,
    out_ptr,
    num_tokens,
    num_features,
    max_rank,
    offsets_stride_slot,
    offsets_stride_part,
    ranks_stride_slot,
    ranks_stride_part,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STRIPS: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (group of strips, tile): features of the output."""
    start_dependents(PDL)
    slot, token = tile_tokens(tiles_ptr, tl.program_id(1), BLOCK_TOKENS)
    if (slot < 0) & (tl.program_id(1) > 0):
        return
    is_token = token >= 0
    most_ranks = tl.where(slot > 0, max_rank, 0)
    rank_ptr, rank_of_block = ranks_ptr + slot * ranks_stride_slot, tl.arange(0, BLOCK_RANK)
    gate_rank = tl.load(rank_ptr, mask=most_ranks > 0, other=0)
    up_rank = tl.load(rank_ptr + ranks_stride_part, mask=most_ranks > 0, other=0)
    gate_offset_ptrs = offsets_ptr + slot * offsets_stride_slot + rank_of_block
    up_offset_ptrs = gate_offset_ptrs + offsets_stride_part
    is_first = rank_of_block < most_ranks
    gate_offset = tl.multiple_of(tl.load(gate_offset_ptrs, mask=is_first, other=0), ALIGNMENT)
    up_offset = tl.multiple_of(tl.load(up_offset_ptrs, mask=is_first, other=0), ALIGNMENT)

    y_row_ptrs = y_ptr + token[:, None] * 2 * num_features
    out_row_ptrs = out_ptr + token[:, None] * num_features
    gate_shrunk_ptrs = shrunk_ptr + (token * 2 * max_rank)[:, None] + rank_of_block[None, :]
    up_shrunk_ptrs = gate_shrunk_ptrs + max_rank
    is_gate, is_up = rank_of_block < gate_rank, rank_of_block < up_rank
    wait_for_inputs(PDL)

    gate_shrunk = tl.load(gate_shrunk_ptrs, mask=is_token[:, None] & is_gate[None, :], other=0.0)
    up_shrunk = tl.load(up_shrunk_ptrs, mask=is_token[:, None] & is_up[None, :], other=0.0)
    for strip in tl.static_range(STRIPS):
        feature = (tl.program_id(0) * STRIPS + strip) * BLOCK_N + tl.arange(0, BLOCK_N)
        is_feature = feature < num_features
        is_out = is_token[:, None] & is_feature[None, :]
        gate = tl.load(y_row_ptrs + feature[None, :], mask=is_out, other=0.0).to(tl.float32)
        up = tl.load(y_row_ptrs + num_features + feature[None, :], mask=is_out, other=0.0).to(tl.float32)
        feature_ptrs = pool_ptr + feature
        if gate_rank > 0:
            gate += expanded(
                gate_shrunk,
                gate_offset,
                gate_rank,
                gate_offset_ptrs,
                gate_shrunk_ptrs,
                is_token,
                feature_ptrs,
                is_feature,
                ALIGNMENT,
            )
        if up_rank > 0:
            up += expanded(
                up_shrunk,
                up_offset,
                up_rank,
                up_offset_ptrs,
                up_shrunk_ptrs,
                is_token,
                feature_ptrs,
                is_feature,
                ALIGNMENT,
            )
        out = gate / (1 + tl.exp(-gate)) * up
        tl.store(out_row_ptrs + feature[None, :], out.to(out_ptr.dtype.element_ty), mask=is_out)


def lora_gated_expand_triton(
    shrunk: Tensor, token_slots: TokenSlots, tables: LoraTables, y: Tensor, config: GatedExpandConfig | None = None
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. `config` is for measuring: None takes the table's."""
    check_lora_tensors(y, token_slots, tables)
    num_tokens, num_features, max_rank = y.shape[0], y.shape[1] // 2, tables.max_rank
    assert tables.out_features == (num_features, num_features) and y.is_contiguous()
    assert shrunk.shape == (num_tokens, 2, max_rank)
    assert shrunk.dtype in (y.dtype, torch.float32) and shrunk.is_contiguous()
    tiles, config = tiles_of(token_slots), config or gated_expand_config(num_tokens)
    out = torch.empty((num_tokens, num_features), dtype=y.dtype, device=y.device)
    if out.numel():
        num_groups = triton.cdiv(num_features, config.block_n * config.num_strips)
        _lora_gated_expand_kernel[num_groups, len(tiles)](
            shrunk,
            tiles,
            tables.pool,
            tables.b_offsets,
            tables.ranks,
            y,
            out,
            num_tokens,
            num_features,
            max_rank,
            *tables.b_offsets.stride()[:2],
            *tables.ranks.stride(),
            BLOCK_TOKENS=tiles.shape[1] - 1,
            BLOCK_RANK=BLOCK_RANK,
            BLOCK_N=config.block_n,
            STRIPS=config.num_strips,
            ALIGNMENT=known_alignment(tables),
            num_warps=config.num_warps,
            **dependent_launch(y.device),
        )
    return out


def lora_gated_expand(shrunk: Tensor, token_slots: TokenSlots, tables: LoraTables, y: Tensor) -> Tensor:
    expand = lora_gated_expand_triton if y.is_cuda else lora_gated_expand_reference
    return expand(shrunk, token_slots, tables, y)
