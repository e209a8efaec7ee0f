"""PagedAttention for decode: one query per sequence against its paged keys and values (PagedAttention, section 4.1).

    out[s, h] = softmax(cap(scale * query[s, h] . key[first : C, h // G])) value[first : C, h // G]

with C = context_lens[s], where position p of sequence s lies in block block_table[rows[s], p // P], at offset p % P,
and G = H / K. `first` is 0, or max(0, C - sliding_window). cap(x) is x, or logit_softcap * tanh(x / logit_softcap).

Tensors (S sequences, H query heads, K kv heads, D head dim, B blocks, P block size, M entries of a block table, R
rows of it):
    query                    [S, H, D]     bf16, fp16 or fp32; last two dims contiguous, rows may be strided
    key_cache, value_cache   [B, P, K, D]  query's dtype; one layer's view: last three dims contiguous, blocks strided;
                                           or both fp8 with exponents (kernels/fp8_cache.py)
    batch                                  made by `decode_batch`, then per step by `afresh`, from
        block_table          [R, M]        int32, last stride 1; entries past a sequence's last block are not used
        context_lens         [S]           int32: cached tokens, the query's own included; 0 marks a padding row
        rows                 [S]           int64: the sequence's row of the table; None: row s
    sinks                    [H]           an extra score per head that takes its share of the softmax and has no value
                                           (gpt-oss), query's dtype, contiguous; None: there is none
    out                      [S, H, D]     query's dtype, contiguous; written in place; padding rows hold anything; the
                                           kernel with splits of equal work leaves them alone

P from 1 (TokenAttention) up; any G; in the kernel D and K up to 256, and scale > 0. Cells at or past context_lens[s],
or before `first`, are ignored: they may hold what another request left there, NaN included. Table entries of blocks
that hold only such cells may name any block. Rounding: fp32 scores and accumulation, rounded once when written; 16-bit
probabilities are rounded before they are multiplied by the values; in the kernel an fp32 product is three tf32
products. The reference rounds 16-bit scores of many rows; the compiled loop of a CPU (kernels/loops) rounds neither.
Offsets are int64. S may be 0. Rows may be in any order; the reference is fastest if adjacent rows have similar lengths.
The reference is differentiable in the query, except for `out`.

The kernel is split-KV (kernels/split_kv.py): long sequences are cut into splits of about equal work for the whole
batch, by lengths that only the device reads. The grid depends on shapes alone, so a CUDA graph may hold the launch.
The first layer of a step lists the splits for all layers, and a program looks up its own before it waits for the
previous kernel (kernels/dependent_launch.py). Programs count the finished splits of a sequence; the last one merges
them all. So a batch may run on only one stream at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention_config import DecodeConfig, decode_config, num_multiprocessors
from kernels.cpu_loops import loops_for
from kernels.decode_groups import (
    DecodeGroup,
    attend_many,
    decode_group,
    gather_group,
    pays_to_attend_many,
    similar_rows,
)
from kernels.dense_attention import dense_attention
from kernels.dependent_launch import dependent_launch, start_dependents, wait_for_inputs
from kernels.fp8_cache import Cache, elements_of, exponents_of, scale_of
from kernels.fp8_numbers import fp8_pairs
from kernels.longest_first import longest_first_triton
from kernels.optional_triton import tl, triton
from kernels.ordered_attention_decode import ordered_attention_decode_triton
from kernels.paged_tensors import check_paged_tensors
from kernels.split_kv import ITEM_FIELDS, SplitRule, split_items_triton

_MAX_KV_HEADS = 256
_MERGED_AT_ONCE = 2048  # partial results a warp holds in registers: 64 a thread


@dataclass(frozen=True)
class Splits:
    """The splits of a batch by one rule. items: as in kernels/split_kv.py. arrivals [S, 256] int32, used by the kernel:
    finished splits per sequence and kv head; zero between launches."""

    items: Tensor
    arrivals: Tensor


@dataclass(frozen=True)
class DecodeBatch:
    """The sequences of a step that decode, for every layer. splits: those listed so far. split_len: as in
    `decode_batch`. keeps_l1: the kernels around attention rely on the L1 cache, which shares its memory with
    attention's tiles, so those must be small (`decode_config`)."""

    block_table: Tensor
    context_lens: Tensor
    block_size: int
    rows: Tensor
    splits: dict[SplitRule, Splits] = field(default_factory=dict)
    _groups: dict[int | None, tuple[DecodeGroup, ...]] = field(default_factory=dict)
    split_len: int | None = None
    keeps_l1: bool = False

    def afresh(self) -> DecodeBatch:
        """For the next step, which has other lengths in the same tensors."""
        return replace(self, splits={}, _groups={})  # the cached `order_and_arrivals` are dropped, too

    def splits_by(self, rule: SplitRule) -> Splits:
        """On a GPU or in the interpreter."""
        if rule not in self.splits:
            num_seqs, longest = self.context_lens.shape[0], self.block_table.shape[1] * self.block_size
            items = split_items_triton(self.context_lens, self.rows, rule, rule.most_items(num_seqs, longest))
            # A torch kernel, launched without PDL: whatever starts after it may read the items before it waits.
            arrivals = torch.zeros((num_seqs, _MAX_KV_HEADS), dtype=torch.int32, device=items.device)
            self.splits[rule] = Splits(items, arrivals)
        return self.splits[rule]

    @cached_property
    def order_and_arrivals(self) -> tuple[Tensor, Tensor]:
        """For the kernel with splits of a fixed length (kernels/ordered_attention_decode.py), on a GPU."""
        order = longest_first_triton(self.context_lens)
        # Followed by a torch kernel without PDL, as in `splits_by`.
        shape = self.context_lens.shape[0], _MAX_KV_HEADS
        return order, torch.zeros(shape, dtype=torch.int32, device=self.context_lens.device)

    def groups(self, sliding_window: int | None) -> tuple[DecodeGroup, ...]:
        """For the reference. Reads the lengths, for which a GPU would have to be waited for. Made once for all layers
        with this window."""
        if sliding_window not in self._groups:
            table, lens = self.block_table.index_select(0, self.rows), self.context_lens.tolist()
            seen = [length if sliding_window is None else min(length, sliding_window) for length in lens]
            self._groups[sliding_window] = tuple(
                decode_group(table, self.context_lens, lens, rows, self.block_size, sliding_window)
                for rows in similar_rows(seen)
            )
        return self._groups[sliding_window]


def decode_batch(
    block_table: Tensor,
    context_lens: Tensor,
    block_size: int,
    rows: Tensor | None = None,
    split_len: int | None = None,
) -> DecodeBatch:
    """Reads no values of the tensors, which may change before a CUDA graph is replayed. split_len: cut keys at its
    multiples, so that a row's bits do not depend on the rest of the batch (kernels/ordered_attention_decode.py); on a
    GPU, for plain caches without sinks."""
    assert block_table.dtype == context_lens.dtype == torch.int32 and block_table.stride(-1) == 1
    num_seqs = context_lens.shape[0]
    if rows is None:
        assert block_table.shape[0] == num_seqs
        rows = torch.arange(num_seqs, device=block_table.device)
    assert rows.dtype == torch.int64 and rows.shape == (num_seqs,)
    return DecodeBatch(block_table, context_lens, block_size, rows, split_len=split_len)


def paged_attention_decode_reference(
    query: Tensor,
    key_cache: Cache,
    value_cache: Cache,
    batch: DecodeBatch,
    scale: float,
    out: Tensor,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    for group in batch.groups(sliding_window):
        if group.longest == 0:
            continue
        rows = query[group.rows]
        num_kv_heads, head_dim = elements_of(key_cache).shape[2:]
        # The query heads of one kv head are the rows of one small product, so its keys are read once.
        grouped = rows.reshape(rows.shape[0], num_kv_heads, -1, head_dim)
        if logit_softcap is not None or sinks is not None:
            keys, values = (gather_group(c, group, query.dtype) for c in (key_cache, value_cache))
            of_heads = None if sinks is None else sinks.view(num_kv_heads, -1)
            attended = dense_attention(grouped, keys, values, ~group.hidden, scale, logit_softcap, of_heads)
        elif (
            isinstance(key_cache, Tensor)
            and isinstance(value_cache, Tensor)
            and query.dtype is not torch.float32
            and pays_to_attend_many(grouped, group)
        ):
            attended = attend_many(grouped, key_cache, value_cache, group, scale)
        else:
            is_even = group.shortest == group.longest and not group.is_windowed
            keys, values = (
                gather_group(c, group, query.dtype, not is_even)[:, :, : group.longest]
                for c in (key_cache, value_cache)
            )
            mask = None if is_even else ~group.hidden[..., : group.longest]
            attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
        out[group.rows] = attended.reshape(rows.shape)


@triton.jit(
    do_not_specialize=["table_stride", "is_beside"],
    do_not_specialize_on_alignment=["block_table_ptr"],
)
@no_type_check
def _paged_attention_decode_kernel(
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    key_exponents_ptr,
    value_exponents_ptr,
    block_table_ptr,
    items_ptr,
    arrivals_ptr,
    partial_ptr,  # [items, H, D] fp32: the output of each split alone
    lse_ptr,  # [items, H] fp32: log2 of its sum of exponentials
    sinks_ptr,
    out_ptr,
    query_stride_seq,
    block_rows,  # stride from block to block, in rows of HEAD_DIM elements: a row's number fits 32 bits
    table_stride,
    score_scale,  # scale * log2(e): the kernel uses exp2 and log2
    is_beside,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_FP8: tl.constexpr,
    MAX_KV_HEADS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    ITEM_FIELDS: tl.constexpr,
    IS_ALIGNED: tl.constexpr,  # tiles begin at multiples of BLOCK_KV
    MERGE_G: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (kv head, item): an item is one split of one sequence. is_beside: only the last item, which is nearly
    always padding, waits for the previous kernel, so that this one is complete after it."""
    start_dependents(PDL)
    kv_head = tl.program_id(0)
    item = tl.program_id(1)
    item_ptr = items_ptr + item * ITEM_FIELDS
    table_row = tl.load(item_ptr)
    kv_begin = tl.load(item_ptr + 1)
    kv_end = tl.load(item_ptr + 2)
    seq = tl.load(item_ptr + 3)
    first_item = tl.load(item_ptr + 4)
    num_splits = tl.load(item_ptr + 5)
    is_last = item == tl.num_programs(1) - 1
    if table_row < 0:
        if (item == 0) | is_last:
            wait_for_inputs(PDL)  # all may be padding, but some program must wait before the launch is complete
        return
    if IS_ALIGNED:
        kv_begin = tl.multiple_of(kv_begin, BLOCK_KV)

    table_row_ptr = block_table_ptr + table_row.to(tl.int64) * table_stride
    if (is_beside == 0) | is_last:
        wait_for_inputs(PDL)

    row = tl.arange(0, BLOCK_G)
    dim = tl.arange(0, BLOCK_D)
    cell = tl.arange(0, BLOCK_KV)
    head = kv_head * GROUP + row
    is_head_dim = dim < HEAD_DIM
    is_row = (row < GROUP)[:, None] & is_head_dim[None, :]
    row_offset = head[:, None] * HEAD_DIM + dim[None, :]
    query_row_ptr = query_ptr + seq.to(tl.int64) * query_stride_seq
    if IS_FP8:  # even and odd dims apart: fp8 elements are read in pairs
        pair = tl.arange(0, BLOCK_D // 2)
        is_query = (row < GROUP)[:, None] & (pair < HEAD_DIM // 2)[None, :]
        pair_ptr = query_row_ptr + head[:, None] * HEAD_DIM + 2 * pair[None, :]
        query = tl.load(pair_ptr, mask=is_query, other=0.0)
        odd_query = tl.load(pair_ptr + 1, mask=is_query, other=0.0)
    else:
        query = tl.load(query_row_ptr + row_offset, mask=is_row, other=0.0)

    highest = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    if IS_FP8:
        key_pairs_ptr = key_cache_ptr.to(tl.pointer_type(tl.uint16))
        value_pairs_ptr = value_cache_ptr.to(tl.pointer_type(tl.uint16))
        acc = tl.zeros([BLOCK_G, BLOCK_D // 2], tl.float32)
        odd_acc = tl.zeros([BLOCK_G, BLOCK_D // 2], tl.float32)
    else:
        acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for tile_begin in tl.range(kv_begin, kv_end, BLOCK_KV, num_stages=NUM_STAGES):
        position = tile_begin + cell
        is_read = position < kv_end
        block = tl.load(table_row_ptr + position // BLOCK_SIZE, mask=is_read, other=0)
        cache_row = block * block_rows + (position % BLOCK_SIZE * NUM_KV_HEADS + kv_head)
        if IS_FP8:
            offset = (cache_row.to(tl.int64) * (HEAD_DIM // 2))[:, None] + pair[None, :]
            is_cell = is_read[:, None] & (pair < HEAD_DIM // 2)[None, :]
            key_pairs = tl.load(key_pairs_ptr + offset, mask=is_cell, other=0)
            value_pairs = tl.load(value_pairs_ptr + offset, mask=is_cell, other=0)
            exponent = block.to(tl.int64) * block_rows * HEAD_DIM + (position % BLOCK_SIZE * NUM_KV_HEADS + kv_head)
            key_scale = scale_of(tl.load(key_exponents_ptr + exponent, mask=is_read, other=0))
            value_scale = scale_of(tl.load(value_exponents_ptr + exponent, mask=is_read, other=0))
            keys, odd_keys = fp8_pairs(key_pairs, query.dtype)
            values, odd_values = fp8_pairs(value_pairs, query.dtype)
            scores = tl.dot(query, tl.trans(keys), input_precision="tf32x3")
            scores = tl.dot(odd_query, tl.trans(odd_keys), scores, input_precision="tf32x3") * key_scale[None, :]
        else:
            offset = (cache_row.to(tl.int64) * HEAD_DIM)[:, None] + dim[None, :]
            is_cell = is_read[:, None] & is_head_dim[None, :]
            keys = tl.load(key_cache_ptr + offset, mask=is_cell, other=0.0)
            values = tl.load(value_cache_ptr + offset, mask=is_cell, other=0.0)
            scores = tl.dot(query, tl.trans(keys), input_precision="tf32x3")
        factor = score_scale
        if SOFTCAP > 0:
            scores = 1 - 2 / (tl.exp2(tl.minimum(scores * score_scale * (2 / SOFTCAP), 64.0)) + 1)
            factor = SOFTCAP * 1.4426950408889634
        scores = tl.where(is_read[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1) * factor)
        decay = tl.exp2(highest - higher)
        weights = tl.exp2(scores * factor - higher[:, None])
        total = total * decay + tl.sum(weights, 1)
        if IS_FP8:
            weights *= value_scale[None, :]
        weights = weights.to(values.dtype)
        acc = tl.dot(weights, values, acc * decay[:, None], input_precision="tf32x3")
        if IS_FP8:
            odd_acc = tl.dot(weights, odd_values, odd_acc * decay[:, None], input_precision="tf32x3")
        highest = higher
    if IS_FP8:
        acc = tl.reshape(tl.join(acc, odd_acc), [BLOCK_G, BLOCK_D])
    if HAS_SINKS and num_splits == 1:  # else it is added once, where the splits are merged
        sink = tl.load(sinks_ptr + head, mask=row < GROUP, other=float("-inf")).to(tl.float32)
        total += tl.exp2(sink * 1.4426950408889634 - highest)
    acc = acc / total[:, None]

    num_heads: tl.constexpr = NUM_KV_HEADS * GROUP
    out_row_ptr = out_ptr + seq.to(tl.int64) * (num_heads * HEAD_DIM)
    if num_splits == 1:
        tl.store(out_row_ptr + row_offset, acc.to(out_ptr.dtype.element_ty), mask=is_row)
        return

    tl.store(partial_ptr + item.to(tl.int64) * (num_heads * HEAD_DIM) + row_offset, acc, mask=is_row)
    tl.store(lse_ptr + item.to(tl.int64) * num_heads + head, highest + tl.log2(total), mask=row < GROUP)
    tl.debug_barrier()  # one thread counts: only after the stores of all threads
    arrival_ptr = arrivals_ptr + seq.to(tl.int64) * MAX_KV_HEADS + kv_head
    if tl.atomic_add(arrival_ptr, 1, sem="acq_rel") != num_splits - 1:
        return

    tl.store(arrival_ptr, 0)
    part = tl.arange(0, BLOCK_SPLITS)
    row = tl.arange(0, MERGE_G)
    head = kv_head * GROUP + row
    row_offset = head[:, None] * HEAD_DIM + dim[None, :]
    is_row = (row < GROUP)[:, None] & is_head_dim[None, :]
    highest = tl.full([MERGE_G], float("-inf"), tl.float32)
    total = tl.zeros([MERGE_G], tl.float32)
    acc = tl.zeros([MERGE_G, BLOCK_D], tl.float32)
    for base in range(0, num_splits, BLOCK_SPLITS):
        is_split = base + part < num_splits
        source = (first_item + base + part).to(tl.int64) * num_heads
        # .cg: from L2, where the other programs' stores are
        lse = tl.load(
            lse_ptr + source[:, None] + head[None, :],
            mask=is_split[:, None] & (row < GROUP)[None, :],
            other=float("-inf"),
            cache_modifier=".cg",
        )
        partial = tl.load(
            partial_ptr + source[:, None, None] * HEAD_DIM + row_offset[None, :, :],
            mask=is_split[:, None, None] & is_row[None, :, :],
            other=0.0,
            cache_modifier=".cg",
        )
        higher = tl.maximum(highest, tl.max(lse, 0))
        known = tl.where(higher > float("-inf"), higher, 0)  # padding rows of the group have no sums
        decay = tl.exp2(highest - known)
        weights = tl.exp2(lse - known[None, :])
        total = total * decay + tl.sum(weights, 0)
        acc = acc * decay[:, None] + tl.sum(weights[:, :, None] * partial, 0)
        highest = higher
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head, mask=row < GROUP, other=float("-inf")).to(tl.float32)
        known = tl.where(highest > float("-inf"), highest, 0)
        total += tl.exp2(sink * 1.4426950408889634 - known)
    acc = acc / tl.where(total > 0, total, 1)[:, None]
    tl.store(out_row_ptr + row_offset, acc.to(out_ptr.dtype.element_ty), mask=is_row)


def paged_attention_decode_triton(
    query: Tensor,
    key_cache: Cache,
    value_cache: Cache,
    batch: DecodeBatch,
    scale: float,
    out: Tensor,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    sinks: Tensor | None = None,
    config: DecodeConfig | None = None,
    *,
    is_beside: bool = False,
) -> None:
    """On CUDA tensors, or on any in Triton's interpreter. `config` is for measuring: None takes the table's. is_beside:
    as in `paged_attention_decode`."""
    num_seqs, num_heads, head_dim = query.shape
    keys, values = elements_of(key_cache), elements_of(value_cache)
    num_kv_heads = keys.shape[2]
    check_paged_tensors(query, key_cache, value_cache, batch.block_size, out)
    assert batch.context_lens.shape == (num_seqs,)
    assert num_kv_heads <= _MAX_KV_HEADS and scale > 0 and (sliding_window is None or sliding_window > 0)
    assert sinks is None or (sinks.shape == (num_heads,) and sinks.is_contiguous())
    if num_seqs == 0:
        return
    is_fp8 = not isinstance(key_cache, Tensor)
    pairs = num_seqs * num_kv_heads
    config = config or decode_config(
        head_dim, query.dtype, pairs, is_fp8=is_fp8, keeps_l1=batch.keeps_l1, is_beside=is_beside
    )
    assert not is_fp8 or head_dim % 2 == 0
    group = num_heads // num_kv_heads
    block_d = max(32 if is_fp8 else 16, triton.next_power_of_2(head_dim))
    programs = config.programs_per_sm * num_multiprocessors(query.device)
    splits_wanted = max(1, programs // num_kv_heads)
    rule = SplitRule(config.block_kv, splits_wanted, config.min_tiles, sliding_window)
    is_beside = is_beside and rule in batch.splits  # else the last launch is one of those that list the splits
    splits = batch.splits_by(rule)
    num_items = splits.items.shape[0]
    partial = torch.empty((num_items, num_heads, head_dim), dtype=torch.float32, device=query.device)
    lse = torch.empty((num_items, num_heads), dtype=torch.float32, device=query.device)
    merge_g = triton.next_power_of_2(group)
    _paged_attention_decode_kernel[(num_kv_heads, num_items)](
        query,
        keys,
        values,
        exponents_of(key_cache),
        exponents_of(value_cache),
        batch.block_table,
        splits.items,
        splits.arrivals,
        partial,
        lse,
        query if sinks is None else sinks,
        out,
        query.stride(0),
        keys.stride(0) // head_dim,
        batch.block_table.stride(0),
        scale * math.log2(math.e),
        int(is_beside),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=batch.block_size,
        SOFTCAP=logit_softcap or 0.0,
        HAS_SINKS=sinks is not None,
        IS_FP8=is_fp8,
        MAX_KV_HEADS=_MAX_KV_HEADS,
        BLOCK_G=max(16, merge_g),
        BLOCK_D=block_d,
        BLOCK_KV=config.block_kv,
        ITEM_FIELDS=ITEM_FIELDS,
        IS_ALIGNED=sliding_window is None,
        MERGE_G=merge_g,
        BLOCK_SPLITS=max(1, config.num_warps * _MERGED_AT_ONCE // (merge_g * block_d)),
        NUM_STAGES=config.num_stages,
        num_warps=config.num_warps,
        enable_fp_fusion=True,
        **dependent_launch(query.device),
    )


def paged_attention_decode(
    query: Tensor,
    key_cache: Cache,
    value_cache: Cache,
    batch: DecodeBatch,
    scale: float,
    out: Tensor,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    sinks: Tensor | None = None,
    *,
    is_beside: bool = False,
) -> None:
    """is_beside: may run at the same time as the last launch. That one was made without PDL, writes nothing that this
    one reads, and none of its temporary tensors was freed."""
    loops = loops_for(query) if isinstance(key_cache, Tensor) else None
    if loops is not None and logit_softcap is None and sinks is None and loops.takes_head_dim(query.shape[2]):
        table, lens = batch.block_table, batch.context_lens
        loops.paged_attention_decode(query, key_cache, value_cache, table, lens, batch.rows, scale, out, sliding_window)
        return
    if query.is_cuda and batch.split_len is not None:
        assert isinstance(key_cache, Tensor) and isinstance(value_cache, Tensor) and sinks is None
        ordered_attention_decode_triton(
            query, key_cache, value_cache, batch.block_table, batch.rows, batch.context_lens, batch.block_size,
            batch.split_len, *batch.order_and_arrivals, scale, out, sliding_window, logit_softcap,
        )  # fmt: skip
        return
    of_layer = query, key_cache, value_cache, batch, scale, out, sliding_window, logit_softcap, sinks
    if query.is_cuda:
        paged_attention_decode_triton(*of_layer, is_beside=is_beside)
    else:
        paged_attention_decode_reference(*of_layer)
