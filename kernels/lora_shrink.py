"""The first half of low-rank adapters (LoRA, Hu et al. 2021), many in one batch (Punica's SGMV, Chen et al. 2023):

    out[t, p, r] = scale[slot[t], p] * sum_k A[slot[t], p][r, k] * x[t, k]

Tensors (T tokens, P parts, R the highest rank served, K input features):
    x            [T, K]        bf16, fp16 or fp32, last stride 1; rows may be strided
    token_slots, tables        kernels/lora_tensors.py
    returns      [T, P, R]     like x, or fp32 from a CPU's loop; contiguous, new; undefined for tokens without
                               adapter, and beyond a part's rank

Rounding: fp32 products (never tf32) and sums, rounded once. A token's result does not depend on the other tokens, nor
on their number within 1 to 256, or above. Offsets are int64. T may be 0. The next kernel may run beside it
(kernels/dependent_launch.py).

Few tokens make few programs, so K is split; the program that finishes a tile's last part merges them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import no_type_check

import torch
from torch import Tensor

from kernels.cpu_loops import loops_for
from kernels.dependent_launch import dependent_launch, wait_then_start_dependents
from kernels.lora_tensors import LoraTables, TokenSlots, check_lora_tensors, rows_of_pool, tokens_by_slot
from kernels.lora_tiles import BLOCK_RANK, has_few_tokens, known_alignment, tile_tokens, tiles_of
from kernels.optional_triton import tl, triton


def lora_shrink_reference(x: Tensor, token_slots: TokenSlots, tables: LoraTables) -> Tensor:
    out = x.new_zeros(x.shape[0], tables.num_parts, tables.max_rank)
    for slot, tokens in tokens_by_slot(token_slots):
        ranks, offsets = tables.ranks[slot].tolist(), tables.a_offsets[slot].tolist()
        rows = [offset for part, rank in enumerate(ranks) for offset in offsets[part][:rank]]
        if not rows:
            continue
        a = rows_of_pool(tables.pool, rows, x.shape[1])
        products = (x[tokens].float() @ a.float().T).split(ranks, 1)
        for part, (rank, product) in enumerate(zip(ranks, products, strict=True)):
            out[tokens, part, :rank] = (product * tables.scales[slot, part]).to(x.dtype)
    return out


@dataclass(frozen=True, slots=True)
class ShrinkConfig:
    """parts: parts per program, from one reading of x; a power of two. block_k: input features per stage (half of it in
    fp32). K is split into at most max_splits parts of at least min_size."""

    parts: int
    block_k: int
    num_warps: int
    num_stages: int
    min_size: int
    max_splits: int

    def num_splits(self, size: int) -> int:
        return max(1, min(self.max_splits, size // self.min_size))


def shrink_config(num_tokens: int, num_parts: int, *, ordered: bool = False) -> ShrinkConfig:
    """ordered: split K in the same way for any number of tokens, as for few.

    Few tokens: one part per program and many splits, because there would be few programs otherwise. Many tokens:
    reading x takes the time, so all parts at once.

    On one H200 (torch 2.11, triton 3.6) for Llama-8B's qkv, rank 16, us: 1 row 4.0; 64 rows of 1, 8 and 64 adapters
    5.2, 5.8 and 16.6; 256 rows of 256 adapters 46.6. With tiles of 256 and 4 warps 3.7, 4.6, 5.1, 19.8 and 67.6. 2048
    rows of 8 adapters 22.4; with 8 splits 33, because one program merges them all.
    """
    few = ShrinkConfig(1, 128, num_warps=2, num_stages=4, min_size=512, max_splits=16)
    if has_few_tokens(num_tokens):
        return few
    many = ShrinkConfig(triton.next_power_of_2(num_parts), 128, num_warps=8, num_stages=3, min_size=1024, max_splits=4)
    return replace(many, min_size=few.min_size, max_splits=few.max_splits) if ordered else many


@triton.jit(do_not_specialize=["num_tokens", "num_parts"])
@no_type_check
def _lora_shrink_kernel(
    x_ptr,
    tiles_ptr,
    pool_ptr,
    offsets_ptr,
    ranks_ptr,
    scales_ptr,
    arrivals_ptr,
    partial_ptr,  # [splits, T, P, R]
    out_ptr,
    num_tokens,
    size,
    num_parts,
    max_rank,
    x_stride_token,
    offsets_stride_slot,
    offsets_stride_part,
    ranks_stride_slot,
    ranks_stride_part,
    scales_stride_slot,
    scales_stride_part,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (split, group of parts, tile). A's rows are the product's left operand, those of the group's parts one
    below another. All addresses are known before the inputs are: tables and tiles come by a copy."""
    slot, token = tile_tokens(tiles_ptr, tl.program_id(2), BLOCK_TOKENS)
    if (slot <= 0) & (tl.program_id(2) > 0):
        return
    is_token = token >= 0
    row = tl.arange(0, PARTS * BLOCK_RANK)
    part, rank_of_row = (tl.program_id(1) * PARTS + row // BLOCK_RANK).to(tl.int64), row % BLOCK_RANK
    is_part = part < tl.where(slot > 0, num_parts, 0)
    offset_ptrs = offsets_ptr + slot * offsets_stride_slot + part * offsets_stride_part + rank_of_row
    rank = tl.load(ranks_ptr + slot * ranks_stride_slot + part * ranks_stride_part, mask=is_part, other=0)
    scale = tl.load(scales_ptr + slot * scales_stride_slot + part * scales_stride_part, mask=is_part, other=0.0)
    # Loads the first rows' offsets without waiting for the rank: up to max_rank they are in the table.
    offset = tl.multiple_of(tl.load(offset_ptrs, mask=is_part & (rank_of_row < max_rank), other=0), ALIGNMENT)
    highest_rank = tl.max(rank, 0)

    split, num_tiles = tl.program_id(0), tl.cdiv(size, BLOCK_K)
    begin = split * num_tiles // SPLITS * BLOCK_K
    end = tl.minimum((split + 1) * num_tiles // SPLITS * BLOCK_K, size)
    k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + token[:, None] * x_stride_token + k[None, :]
    place = (token[None, :] * num_parts + part[:, None]) * max_rank + rank_of_row[:, None]
    stride_split = num_parts.to(tl.int64) * max_rank * num_tokens
    wait_then_start_dependents(PDL)

    for start_rank in range(0, highest_rank, BLOCK_RANK):
        is_rank = start_rank + rank_of_row < rank
        if start_rank > 0:
            offset = tl.multiple_of(tl.load(offset_ptrs + start_rank, mask=is_rank, other=0), ALIGNMENT)
        a_ptrs = pool_ptr + offset[:, None] + k[None, :]
        acc = tl.zeros([PARTS * BLOCK_RANK, BLOCK_TOKENS], tl.float32)
        for start in tl.range(begin, end, BLOCK_K, num_stages=NUM_STAGES):
            is_k = (start + k < size)[None, :]
            a = tl.load(a_ptrs + start, mask=is_rank[:, None] & is_k, other=0.0)
            x = tl.load(x_ptrs + start, mask=is_token[:, None] & is_k, other=0.0)
            acc = tl.dot(a, tl.trans(x), acc, input_precision="ieee")
        is_out, product = is_rank[:, None] & is_token[None, :], acc * scale[:, None]
        if SPLITS > 1:
            tl.store(partial_ptr + split * stride_split + place + start_rank, product, mask=is_out)
        else:
            tl.store(out_ptr + place + start_rank, product.to(out_ptr.dtype.element_ty), mask=is_out)
    if (SPLITS > 1) & (highest_rank > 0):
        tl.debug_barrier()  # one thread counts: only after the stores of all threads
        arrival_ptr = arrivals_ptr + tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
        if tl.atomic_add(arrival_ptr, 1, sem="acq_rel") == SPLITS - 1:
            tl.store(arrival_ptr, 0)
            for start_rank in range(0, highest_rank, BLOCK_RANK):
                is_out = (start_rank + rank_of_row < rank)[:, None] & is_token[None, :]
                total = tl.zeros([PARTS * BLOCK_RANK, BLOCK_TOKENS], tl.float32)
                for each in tl.static_range(SPLITS):
                    # .cg: from L2, where the other programs' stores are
                    part_ptrs = partial_ptr + each * stride_split + place + start_rank
                    total += tl.load(part_ptrs, mask=is_out, other=0.0, cache_modifier=".cg")
                tl.store(out_ptr + place + start_rank, total.to(out_ptr.dtype.element_ty), mask=is_out)


def lora_shrink_triton(
    x: Tensor,
    token_slots: TokenSlots,
    tables: LoraTables,
    config: ShrinkConfig | None = None,
    *,
    ordered: bool = False,
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. `config` is for measuring: None takes the table's."""
    check_lora_tensors(x, token_slots, tables)
    num_tokens, size = x.shape
    num_parts, max_rank = tables.num_parts, tables.max_rank
    config = config or shrink_config(num_tokens, num_parts, ordered=ordered)
    out = torch.empty((num_tokens, num_parts, max_rank), dtype=x.dtype, device=x.device)
    tiles = tiles_of(token_slots)
    if out.numel() and len(tiles):
        num_groups = triton.cdiv(num_parts, config.parts)
        arrivals, num_splits, partial = tables.arrivals, config.num_splits(size), out
        if arrivals is None:
            num_splits = 1
        elif num_splits > 1:
            assert arrivals.dtype == torch.int32 and arrivals.shape[0] >= num_groups * len(tiles)
            partial = torch.empty((num_splits, *out.shape), dtype=torch.float32, device=x.device)
        _lora_shrink_kernel[num_splits, num_groups, len(tiles)](
            x,
            tiles,
            tables.pool,
            tables.a_offsets,
            tables.ranks,
            tables.scales,
            out if arrivals is None else arrivals,
            partial,
            out,
            num_tokens,
            size,
            num_parts,
            max_rank,
            x.stride(0),
            *tables.a_offsets.stride()[:2],
            *tables.ranks.stride(),
            *tables.scales.stride(),
            BLOCK_TOKENS=tiles.shape[1] - 1,
            BLOCK_RANK=BLOCK_RANK,
            BLOCK_K=config.block_k * 2 // x.itemsize,
            PARTS=config.parts,
            SPLITS=num_splits,
            ALIGNMENT=known_alignment(tables),
            NUM_STAGES=config.num_stages,
            num_warps=config.num_warps,
            **dependent_launch(x.device),
        )
    return out


def lora_shrink(x: Tensor, token_slots: TokenSlots, tables: LoraTables, *, ordered: bool = False) -> Tensor:
    """ordered: a token's bits do not depend on the number of tokens. For that the kernels for few and for many tokens
    must agree (tests/kernels/test_lora_shrink.py); a CPU's loop computes each token by itself."""
    if x.is_cuda:
        return lora_shrink_triton(x, token_slots, tables, ordered=ordered)
    loops = loops_for(x)
    shrink = lora_shrink_reference if loops is None else loops.lora_shrink
    return shrink(x, token_slots, tables)
