"""PagedAttention for decode in a fixed order: a row gets the same bits as kernels/paged_attention_prefill.py gives it
as part of a prompt, whatever the other rows are.

Formula and tensors are those of kernels/paged_attention_decode.py, for plain caches without sinks, and
    order      [S]        int32: in which the device takes the sequences (kernels/longest_first.py). Like the lengths,
                          complete before the last kernel without dependent launch began
    arrivals   [S, >= K]  int32, for the kernel: zero between launches, so for one stream at a time

Keys are cut into splits of `split_len` tokens, the first at position 0; split_len is a multiple of 64, and the same for
prompts. Each split is computed by itself, tile by tile, and splits are merged from first to last, as for a prompt. So a
token's bits do not depend on how it was computed, or beside what. sliding_window hides keys but moves no border.

Rounding: as there, with fp32 sums of each split. Offsets are int64. S may be 0. The reference is that of decodes.

With many sequences, each has one program, which merges its splits as it goes. With few, a sequence's splits are shared
by as many programs as there is room for, and the program that finishes last (by a count) merges them all. The sharing
changes no bits. Neither does it matter that a program here has 16 rows, few of them padding, in two warps, and a
prompt's program 64 rows in four: tests/kernels/test_ordered_attention_decode.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import no_type_check

import torch
from torch import Tensor

from kernels.attention_config import num_multiprocessors
from kernels.attention_tiles import attend_tile, join_split, total_of_parts
from kernels.dependent_launch import dependent_launch, start_dependents, wait_for_inputs
from kernels.optional_triton import tl, triton
from kernels.paged_tensors import check_paged_tensors

BLOCK_KV = 64
"""The same for prompts."""
_MOST_SPLITS = 64
_SHORTEST_SPLIT = 512
_MOST_HEADS = 64
_SOME_PROGRAMS, _MANY_PROGRAMS = 256, 1024


@dataclass(frozen=True, slots=True)
class OrderedDecodeConfig:
    """block_m: rows of a program, most of them padding. programs_per_sm: about how many, if sequences are split."""

    block_m: int = 64
    num_warps: int = 4
    num_stages: int = 5
    programs_per_sm: int = 4


def ordered_decode_config(num_seqs: int, num_kv_heads: int, group: int) -> OrderedDecodeConfig:
    """The best of 10 configs on one H200 (torch 2.11, triton 3.6), us per layer with 32 heads in 8 groups of 128 dims,
    in brackets the usual kernel: 1 x 384 tokens 9.2 (7.7), 1 x 8,192 18.0 (14.9), 8 x 384 10.1 (10.3), 64 x 384 27.4
    (27.5), 256 x 384 100 (96), 64 x 2,048 132 (124), 500 x 200 to 1,000 288 (279). With 64 rows in 4 warps the last
    four take 33, 112, 142 and 328."""
    if group > 16:
        return OrderedDecodeConfig()
    num_programs = num_seqs * num_kv_heads
    if num_programs >= _MANY_PROGRAMS:
        return OrderedDecodeConfig(16, num_warps=2, num_stages=5)
    if num_programs >= _SOME_PROGRAMS:
        return OrderedDecodeConfig(16, num_warps=2, num_stages=4, programs_per_sm=8)
    return OrderedDecodeConfig(16, num_warps=2, num_stages=7)


def ordered_split_len(max_model_len: int) -> int:
    """The split length for a server whose sequences have at most so many tokens. The maximum bounds the memory for
    splits."""
    return max(_SHORTEST_SPLIT, -(-max_model_len // (_MOST_SPLITS * BLOCK_KV)) * BLOCK_KV)


def takes_heads(device: torch.device, dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Whether this kernel and the prefill kernel attend in the same order for such heads."""
    is_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    is_narrow = head_dim <= 128 and head_dim % 16 == 0 and num_heads // num_kv_heads <= _MOST_HEADS
    return is_hopper and dtype is torch.bfloat16 and is_narrow


@triton.jit(
    do_not_specialize=["table_stride", "arrivals_stride", "most_splits"],
    do_not_specialize_on_alignment=["block_table_ptr", "rows_ptr", "context_lens_ptr", "order_ptr"],
)
@no_type_check
def _ordered_attention_decode_kernel(
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    rows_ptr,
    context_lens_ptr,
    order_ptr,
    arrivals_ptr,  # finished programs per sequence and kv head
    partial_ptr,  # [S, most_splits, H, D] fp32: each split's weighted sum; ALONE: the sum so far
    softmax_ptr,  # [S, most_splits, H, 2] fp32: the split's highest score and total
    out_ptr,
    query_stride_seq,
    block_rows,  # stride from block to block, in rows of HEAD_DIM elements: a row's number fits 32 bits
    table_stride,
    arrivals_stride,
    most_splits,
    score_scale,  # scale * log2(e): the kernel uses exp2 and log2
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    MERGE_G: tl.constexpr,
    SPLIT: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    ALONE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (kv head, place of a sequence, i): splits i, i + n, i + 2 n, ... for n programs per sequence. ALONE: n =
    1."""
    start_dependents(PDL)
    kv_head, seq = tl.program_id(0), tl.load(order_ptr + tl.program_id(1))
    context_len = tl.load(context_lens_ptr + seq)
    table_row_ptr = block_table_ptr + tl.load(rows_ptr + seq) * table_stride
    wait_for_inputs(PDL)
    if context_len == 0:
        return
    kv_first, kv_begin = 0, 0
    if SLIDING_WINDOW > 0:
        kv_first = tl.maximum(context_len - SLIDING_WINDOW, 0)
        kv_begin = kv_first // BLOCK_KV * BLOCK_KV
    first_split = kv_begin // SPLIT
    num_splits = tl.cdiv(context_len, SPLIT) - first_split

    num_heads: tl.constexpr = NUM_KV_HEADS * GROUP
    row = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + row
    is_row = (row < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    row_offset = head[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + seq.to(tl.int64) * query_stride_seq + row_offset, mask=is_row, other=0.0)
    position = tl.zeros([1], tl.int32) + (context_len - 1)
    out_row_ptr = out_ptr + seq.to(tl.int64) * (num_heads * HEAD_DIM)

    for split in range(tl.program_id(2), num_splits, tl.num_programs(2)):
        begin = tl.maximum((first_split + split) * SPLIT, kv_begin)
        end = tl.minimum((first_split + split + 1) * SPLIT, context_len)
        highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
        parts = tl.zeros([BLOCK_M, 2, 4], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for tile_begin in tl.range(begin, end, BLOCK_KV, num_stages=NUM_STAGES):
            highest, parts, acc = attend_tile(
                query, position, highest, parts, acc, tile_begin, kv_first, context_len, table_row_ptr, key_cache_ptr,
                value_cache_ptr, key_cache_ptr, value_cache_ptr, kv_head, block_rows, score_scale, NUM_KV_HEADS,
                HEAD_DIM, BLOCK_SIZE, SLIDING_WINDOW, SOFTCAP, False, BLOCK_D, BLOCK_KV, True, True,
            )  # fmt: skip
        total = total_of_parts(parts)
        place = (seq.to(tl.int64) * most_splits + (0 if ALONE else split)) * num_heads
        softmax_ptrs, partial_ptrs = softmax_ptr + (place + head) * 2, partial_ptr + place * HEAD_DIM + row_offset
        of_head = row < GROUP
        if ALONE & (split > 0):  # the earlier sum is kept in memory, for want of registers for two
            before = tl.load(softmax_ptrs, mask=of_head, other=0.0)
            total_before = tl.load(softmax_ptrs + 1, mask=of_head, other=1.0)
            acc_before = tl.load(partial_ptrs, mask=is_row, other=0.0)
            highest, total, acc = join_split(before, total_before, acc_before, highest, total, acc)
            tl.debug_barrier()  # all threads read before any writes
        if (split == num_splits - 1) if ALONE else (num_splits == 1):
            acc = acc / total[:, None]
            tl.store(out_row_ptr + row_offset, acc.to(out_ptr.dtype.element_ty), mask=is_row)
        else:
            tl.store(partial_ptrs, acc, mask=is_row)
            tl.store(softmax_ptrs, highest, mask=of_head)
            tl.store(softmax_ptrs + 1, total, mask=of_head)
            if ALONE:
                tl.debug_barrier()  # another thread may read them
    if ALONE or num_splits == 1:
        return
    tl.debug_barrier()  # one thread counts: only after the stores of all threads
    arrival_ptr = arrivals_ptr + seq * arrivals_stride + kv_head
    if tl.atomic_add(arrival_ptr, 1, sem="acq_rel") != tl.num_programs(2) - 1:
        return

    tl.store(arrival_ptr, 0)
    row = tl.arange(0, MERGE_G)
    head = kv_head * GROUP + row
    is_row = (row < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    row_offset = head[:, None] * HEAD_DIM + dim[None, :]
    highest = tl.full([MERGE_G], float("-inf"), tl.float32)
    total = tl.zeros([MERGE_G], tl.float32)
    acc = tl.zeros([MERGE_G, BLOCK_D], tl.float32)
    for split in range(num_splits):
        place = (seq.to(tl.int64) * most_splits + split) * num_heads
        # .cg: from L2, where the other programs' stores are
        softmax_ptrs = softmax_ptr + (place + head) * 2
        of_split = row < GROUP
        split_highest = tl.load(softmax_ptrs, mask=of_split, other=0.0, cache_modifier=".cg")
        split_total = tl.load(softmax_ptrs + 1, mask=of_split, other=1.0, cache_modifier=".cg")
        part = tl.load(partial_ptr + place * HEAD_DIM + row_offset, mask=is_row, other=0.0, cache_modifier=".cg")
        highest, total, acc = join_split(highest, total, acc, split_highest, split_total, part)
    acc = acc / total[:, None]
    tl.store(out_row_ptr + row_offset, acc.to(out_ptr.dtype.element_ty), mask=is_row)


def ordered_attention_decode_triton(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    rows: Tensor,
    context_lens: Tensor,
    block_size: int,
    split_len: int,
    order: Tensor,
    arrivals: Tensor,
    scale: float,
    out: Tensor,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    programs_per_sequence: int | None = None,
    config: OrderedDecodeConfig | None = None,
) -> None:
    """On CUDA tensors, or on any in Triton's interpreter. programs_per_sequence, config: for measuring and tests;
    another number of rows than a prompt's may give other bits."""
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    check_paged_tensors(query, key_cache, value_cache, block_size, out)
    assert context_lens.shape == rows.shape == (num_seqs,) and split_len % BLOCK_KV == 0
    assert scale > 0 and (sliding_window is None or sliding_window > 0)
    group = num_heads // num_kv_heads
    assert group <= _MOST_HEADS
    config = config or ordered_decode_config(num_seqs, num_kv_heads, group)
    assert order.dtype == torch.int32 and order.shape == (num_seqs,) and order.is_contiguous()
    assert arrivals.dtype == torch.int32 and arrivals.shape[0] >= num_seqs and arrivals.shape[1] >= num_kv_heads
    if num_seqs == 0:
        return
    most_splits = -(-block_table.shape[1] * block_size // split_len)
    programs = config.programs_per_sm * num_multiprocessors(query.device) // (num_seqs * num_kv_heads)
    programs = programs_per_sequence or min(most_splits, max(1, programs))
    device = query.device
    most_splits = 1 if programs == 1 else most_splits
    partial = torch.empty((num_seqs, most_splits, num_heads, head_dim), dtype=torch.float32, device=device)
    softmax = torch.empty((num_seqs, most_splits, num_heads, 2), dtype=torch.float32, device=device)
    _ordered_attention_decode_kernel[(num_kv_heads, num_seqs, programs)](
        query,
        key_cache,
        value_cache,
        block_table,
        rows,
        context_lens,
        order,
        arrivals,
        partial,
        softmax,
        out,
        query.stride(0),
        key_cache.stride(0) // head_dim,
        block_table.stride(0),
        arrivals.stride(0),
        most_splits,
        scale * math.log2(math.e),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        SLIDING_WINDOW=sliding_window or 0,
        SOFTCAP=logit_softcap or 0.0,
        BLOCK_M=config.block_m,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_KV=BLOCK_KV,
        MERGE_G=triton.next_power_of_2(group),
        SPLIT=split_len,
        NUM_STAGES=config.num_stages,
        ALONE=programs == 1,
        num_warps=config.num_warps,
        enable_fp_fusion=True,
        **dependent_launch(device),
    )
