"""Attention of prompts, or chunks of prompts, over paged keys and values: variable lengths, with a cached prefix.

Sequence s owns the N query rows query_starts[s] : query_starts[s + 1]. They are the last N of its C = context_lens[s]
tokens, whose keys and values are all in the cache. Row i is at position p = C - N + i, and

    out[i, h] = softmax(cap(scale * query[i, h] . key[first : p + 1, h // G])) value[first : p + 1, h // G]

where position x lies in block block_table[rows[s], x // P], at offset x % P, and G = H / K. `first` is 0, or
max(0, p + 1 - sliding_window). cap(x) is x, or logit_softcap * tanh(x / logit_softcap).

Tensors (T query tokens, S sequences, H query heads, K kv heads, D head dim, B blocks, P block size, M table entries):
    query                    [T, H, D]     bf16, fp16 or fp32; last two dims contiguous, rows may be strided
    key_cache, value_cache   [B, P, K, D]  query's dtype; one layer's view: last three dims contiguous, blocks strided;
                                           or both fp8 with exponents (kernels/fp8_cache.py)
    batch                                  made once a step by `prefill_batch` from
        block_table          [R, M]        int32, last stride 1; entries past a sequence's last block are not used
        query_starts         [S + 1]       int32, not decreasing; rows outside them belong to others
        context_lens         [S]           int32, >= the sequence's query rows
        rows                 [S]           int64: the sequence's row of the table; None: row s. The
                                           kernel skips a sequence whose row is negative
        max_query_len        host int, >= every sequence's query rows (bounds the launch)
        split_len            host int, or None: on a GPU, cut keys at its multiples, so that a row's bits do not
                             depend on the rest of the batch (kernels/ordered_attention_decode.py)
    sinks                    [H]           an extra score per head that takes its share of the softmax and has no value
                                           (gpt-oss), query's dtype, contiguous; None: there is none
    out                      [T, H, D]     query's dtype, contiguous; written in place, except rows of others

P from 1 up; any G; in the kernel D up to 256, and scale > 0. Cells at or past context_lens[s], or before the `first` of
the sequence's first row, are ignored: they may hold what another request left there, NaN included. Table entries of
blocks that hold only such cells may name any block. Rounding: fp32 scores and accumulation, rounded once when written;
16-bit probabilities are rounded before they are multiplied by the values; in the kernel an fp32 product is three tf32
products. The reference may round 16-bit scores; the compiled loop of a CPU (kernels/loops) does not. Offsets are int64.
S and T may be 0. The reference is differentiable in the query, except for `out`.

The kernel's grid depends on shapes and max_query_len alone, so a CUDA graph may hold the launch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention_config import (
    PrefillConfig,
    num_multiprocessors,
    ordered_prefill_config,
    prefill_config,
    prefill_units_config,
)
from kernels.attention_tiles import attend_tiles, join_split, total_of_parts
from kernels.cpu_loops import loops_for
from kernels.dense_attention import dense_attention
from kernels.dependent_launch import dependent_launch, start_dependents
from kernels.fp8_cache import Cache, Fp8Cache, elements_of, exponents_of
from kernels.optional_triton import tl, triton
from kernels.paged_tensors import check_paged_tensors
from kernels.prefill_sequences import (
    PrefillSequence,
    attend_by_scores,
    gather_sequence,
    pays_to_keep_scores,
    prefill_sequence,
    visible_cells,
)
from kernels.prefill_units import prefill_units_triton
from kernels.prefill_units import takes as prefill_units_take
from kernels.widened_cache import WidenedTable, capacity_of, widened_cache_triton, widened_table

_WIDENED_ROWS = 512
"""From this many query rows per kv head on, an FP8 cache is widened first; otherwise four programs or more would each
convert the same keys and values."""


@dataclass(frozen=True)
class PrefillBatch:
    """The sequences of a step that compute several tokens, for every layer."""

    block_table: Tensor
    query_starts: Tensor
    context_lens: Tensor
    max_query_len: int
    block_size: int
    rows: Tensor
    split_len: int | None = None
    _widened: dict[int, WidenedTable] = field(default_factory=dict)

    def afresh(self) -> PrefillBatch:
        """For the next step, which has other lengths in the same tensors."""
        return replace(self, _widened={})

    def widened_table(self, cell_bytes: int) -> WidenedTable:
        """For caches that are widened (kernels/widened_cache.py). cell_bytes: of a token's widened keys and values."""
        num_seqs, num_entries = len(self.rows), self.block_table.shape[1]
        capacity = capacity_of(num_seqs, num_entries, cell_bytes, self.block_size)
        if capacity not in self._widened:
            self._widened[capacity] = widened_table(
                self.rows, self.context_lens, num_entries, self.block_size, capacity
            )
        return self._widened[capacity]

    @cached_property
    def sequences(self) -> tuple[PrefillSequence, ...]:
        """For the reference. Reads the lengths, for which a GPU would have to be waited for."""
        rows = [slice(start, stop) for start, stop in pairwise(self.query_starts.tolist())]
        return tuple(
            prefill_sequence(self.block_table[row], rows[seq], context_len, self.block_size)
            for seq, (row, context_len) in enumerate(zip(self.rows.tolist(), self.context_lens.tolist(), strict=True))
        )


def prefill_batch(
    block_table: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    max_query_len: int,
    block_size: int,
    rows: Tensor | None = None,
    split_len: int | None = None,
) -> PrefillBatch:
    """Reads no values of the tensors, which may change before a CUDA graph is replayed."""
    assert block_table.dtype == query_starts.dtype == context_lens.dtype == torch.int32
    num_seqs = context_lens.shape[0]
    assert block_table.stride(-1) == 1 and query_starts.shape[0] == num_seqs + 1
    if rows is None:
        assert block_table.shape[0] == num_seqs
        rows = torch.arange(num_seqs, device=block_table.device)
    assert rows.dtype == torch.int64 and rows.shape == (num_seqs,)
    return PrefillBatch(block_table, query_starts, context_lens, max_query_len, block_size, rows, split_len)


def paged_attention_prefill_reference(
    query: Tensor,
    key_cache: Cache,
    value_cache: Cache,
    batch: PrefillBatch,
    scale: float,
    out: Tensor,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    group = query.shape[1] // elements_of(key_cache).shape[2]
    for sequence in batch.sequences:
        if sequence.rows.start == sequence.rows.stop:
            continue
        rows, first, mask = query[sequence.rows].transpose(0, 1)[None], 0, sequence.mask
        if sliding_window is not None and sliding_window < sequence.context_len:
            first = max(0, sequence.context_len - rows.shape[2] + 1 - sliding_window)
            mask = visible_cells(rows.shape[2], sequence.context_len, sliding_window, query.device)[:, first:]
        keys, values = (gather_sequence(c, sequence, query.dtype, first) for c in (key_cache, value_cache))
        is_windowed = mask is not sequence.mask
        is_dense = logit_softcap is not None or sinks is not None
        if not is_dense and not is_windowed and pays_to_keep_scores(rows, sequence.context_len):
            attended = attend_by_scores(rows, keys, values, sequence.hidden, scale)
        elif not is_dense:
            attended = F.scaled_dot_product_attention(
                rows, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
            )
        else:
            if mask is None:
                mask = visible_cells(rows.shape[2], sequence.context_len, None, query.device)
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
            of_heads = None if sinks is None else sinks[:, None]
            attended = dense_attention(rows, keys, values, mask, scale, logit_softcap, of_heads)
        out[sequence.rows] = attended[0].transpose(0, 1)


@triton.jit(
    do_not_specialize=["num_seqs", "table_stride"],
    do_not_specialize_on_alignment=["block_table_ptr", "rows_ptr", "query_starts_ptr", "context_lens_ptr"],
)
@no_type_check
def _paged_attention_prefill_kernel(
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    key_exponents_ptr,
    value_exponents_ptr,
    block_table_ptr,
    rows_ptr,
    query_starts_ptr,
    context_lens_ptr,
    sinks_ptr,
    out_ptr,
    num_seqs,
    query_stride_token,
    block_rows,  # stride from block to block, in rows of HEAD_DIM elements: a row's number fits 32 bits
    table_stride,
    score_scale,  # scale * log2(e): the kernel uses exp2 and log2
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_FP8: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (kv head, item): an item is a few adjacent query tokens of one sequence, numbered backwards from the
    batch's last token. So the longest contexts of a sequence run first, and the device does not end with them.

    An item's tiles come in three runs: tiles that a sliding window hides in part from some rows, tiles that every row
    sees whole, and tiles that hold the rows' own tokens. SPLIT: at its multiples the softmax restarts; at a split's end
    it is merged with the splits before it. 0: no splits.
    """
    start_dependents(PDL)
    kv_head = tl.program_id(0)
    item = tl.num_programs(1) - 1 - tl.program_id(1)
    tile_tokens: tl.constexpr = BLOCK_M // GROUP

    seq = 0
    first_item = 0
    num_items = 0
    for base in range(0, num_seqs, 128):
        seqs = base + tl.arange(0, 128)
        starts = tl.load(query_starts_ptr + seqs, mask=seqs < num_seqs, other=0)
        stops = tl.load(query_starts_ptr + seqs + 1, mask=seqs < num_seqs, other=0)
        items = tl.cdiv(stops - starts, tile_tokens)
        ends = num_items + tl.cumsum(items, 0)
        is_before = ends <= item
        seq += tl.sum(is_before.to(tl.int32))
        first_item = tl.maximum(first_item, tl.max(tl.where(is_before, ends, 0)))
        num_items += tl.sum(items)
    if item >= num_items:
        return

    query_start = tl.load(query_starts_ptr + seq)
    query_stop = tl.load(query_starts_ptr + seq + 1)
    ahead = tl.load(context_lens_ptr + seq) - query_stop  # a row's position minus its row number
    first_token = query_start + (item - first_item) * tile_tokens
    last_token = tl.minimum(first_token + tile_tokens, query_stop) - 1

    row = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    token = first_token + row // GROUP
    head = kv_head * GROUP + row % GROUP
    position = token + ahead
    is_row = ((token <= last_token) & (row < tile_tokens * GROUP))[:, None] & (dim < HEAD_DIM)[None, :]
    query_offset = token.to(tl.int64) * query_stride_token + head * HEAD_DIM
    query = tl.load(query_ptr + query_offset[:, None] + dim[None, :], mask=is_row, other=0.0)

    table_row = tl.load(rows_ptr + seq)
    if table_row < 0:
        return
    table_row_ptr = block_table_ptr + table_row * table_stride
    kv_end = last_token + ahead + 1
    full_end = (first_token + ahead + 1) // BLOCK_KV * BLOCK_KV
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    kv_first, kv_begin, full_begin = 0, 0, 0
    if SLIDING_WINDOW > 0:
        kv_first = tl.maximum(first_token + ahead + 1 - SLIDING_WINDOW, 0)
        kv_begin = kv_first // BLOCK_KV * BLOCK_KV
        full_end = tl.maximum(full_end, kv_begin)
        seen_by_all = tl.cdiv(tl.maximum(kv_end - SLIDING_WINDOW, 0), BLOCK_KV) * BLOCK_KV
        full_begin = tl.minimum(seen_by_all, full_end)
    if SPLIT == 0:
        highest, total, acc = attend_tiles(
            query, position, highest, total, acc, kv_begin, full_begin, full_end, kv_end, kv_first, kv_end,
            table_row_ptr, key_cache_ptr, value_cache_ptr, key_exponents_ptr, value_exponents_ptr, kv_head,
            block_rows, score_scale, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, SLIDING_WINDOW, SOFTCAP, IS_FP8, BLOCK_D,
            BLOCK_KV, NUM_STAGES, MAY_SEE_NOTHING=SLIDING_WINDOW > 0,
        )  # fmt: skip
    else:
        for split_begin in range(kv_begin // SPLIT * SPLIT, kv_end, SPLIT):
            split_end = tl.minimum(split_begin + SPLIT, kv_end)
            part_highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
            part_total = tl.zeros([BLOCK_M, 2, 4], tl.float32)
            part_acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
            part_highest, part_total, part_acc = attend_tiles(
                query, position, part_highest, part_total, part_acc,
                tl.maximum(kv_begin, split_begin), tl.minimum(tl.maximum(full_begin, split_begin), split_end),
                tl.minimum(tl.maximum(full_end, split_begin), split_end), split_end, kv_first, kv_end, table_row_ptr,
                key_cache_ptr, value_cache_ptr, key_exponents_ptr, value_exponents_ptr, kv_head, block_rows,
                score_scale, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, SLIDING_WINDOW, SOFTCAP, IS_FP8, BLOCK_D, BLOCK_KV,
                NUM_STAGES, MAY_SEE_NOTHING=True,
            )  # fmt: skip
            split_total = total_of_parts(part_total)
            highest, total, acc = join_split(highest, total, acc, part_highest, split_total, part_acc)

    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32)
        total += tl.exp2(sink * 1.4426950408889634 - highest)
    acc = acc / total[:, None]
    out_offset = (token.to(tl.int64) * (NUM_KV_HEADS * GROUP) + head) * HEAD_DIM
    tl.store(out_ptr + out_offset[:, None] + dim[None, :], acc.to(out_ptr.dtype.element_ty), mask=is_row)


def paged_attention_prefill_triton(
    query: Tensor,
    key_cache: Cache,
    value_cache: Cache,
    batch: PrefillBatch,
    scale: float,
    out: Tensor,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    sinks: Tensor | None = None,
    config: PrefillConfig | None = None,
) -> None:
    """On CUDA tensors, or on any in Triton's interpreter. `config` is for measuring. None: by the tables, which use
    kernels/prefill_units.py where it is faster."""
    num_tokens, num_heads, head_dim = query.shape
    keys, values = elements_of(key_cache), elements_of(value_cache)
    num_kv_heads = keys.shape[2]
    num_seqs = batch.context_lens.shape[0]
    check_paged_tensors(query, key_cache, value_cache, batch.block_size, out)
    assert scale > 0 and (sliding_window is None or sliding_window > 0)
    assert sinks is None or (sinks.shape == (num_heads,) and sinks.is_contiguous())
    if num_tokens == 0 or num_seqs == 0:
        return
    group = num_heads // num_kv_heads
    rows_per_sm = num_tokens * num_heads / num_multiprocessors(query.device)
    is_fp8 = not isinstance(key_cache, Tensor)
    is_plain = not is_fp8 and not sliding_window and not logit_softcap and not batch.split_len
    if config is None and is_plain:
        units = prefill_units_config(head_dim, rows_per_sm, batch.max_query_len * group)
        if units is not None and prefill_units_take(query, keys, values, units):
            of_batch = batch.block_table, batch.rows, batch.query_starts, batch.context_lens, batch.max_query_len
            prefill_units_triton(query, keys, values, *of_batch, scale, out, sinks, units)
            return
    if config is None and batch.split_len is not None and query.dtype.itemsize == 2 and not is_fp8:
        config = ordered_prefill_config()
    config = config or prefill_config(head_dim, query.dtype, rows_per_sm, is_fp8=is_fp8)
    assert batch.split_len is None or batch.split_len % config.block_kv == 0
    block_m = max(config.block_m, triton.next_power_of_2(group))
    tile_tokens = block_m // group
    num_items = min(
        triton.cdiv(num_tokens, tile_tokens) + num_seqs,
        num_seqs * triton.cdiv(batch.max_query_len, tile_tokens),
    )
    _paged_attention_prefill_kernel[(num_kv_heads, num_items)](
        query,
        keys,
        values,
        exponents_of(key_cache),
        exponents_of(value_cache),
        batch.block_table,
        batch.rows,
        batch.query_starts,
        batch.context_lens,
        query if sinks is None else sinks,
        out,
        num_seqs,
        query.stride(0),
        keys.stride(0) // head_dim,
        batch.block_table.stride(0),
        scale * math.log2(math.e),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=batch.block_size,
        SLIDING_WINDOW=sliding_window or 0,
        SOFTCAP=logit_softcap or 0.0,
        HAS_SINKS=sinks is not None,
        IS_FP8=is_fp8,
        BLOCK_M=block_m,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_KV=config.block_kv,
        NUM_STAGES=config.num_stages,
        SPLIT=batch.split_len or 0,
        PDL=dependent_launch(query.device)["PDL"],
        num_warps=config.num_warps,
        maxnreg=config.max_registers,
        enable_fp_fusion=True,
    )


def paged_attention_prefill_widened_triton(
    query: Tensor,
    key_cache: Fp8Cache,
    value_cache: Fp8Cache,
    batch: PrefillBatch,
    scale: float,
    out: Tensor,
    logit_softcap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Like paged_attention_prefill_triton, but keys and values are widened once for all rows, as far as there is room
    (kernels/widened_cache.py)."""
    if query.shape[0] == 0 or len(batch.rows) == 0:
        return
    cell_bytes = 2 * key_cache.elements.shape[2:].numel() * query.dtype.itemsize
    table = batch.widened_table(cell_bytes)
    columns = batch.block_table, batch.rows, batch.context_lens
    wide_keys, wide_values = widened_cache_triton(key_cache, value_cache, *columns, table, query.dtype)
    fitting = replace(batch, block_table=table.block_table, rows=table.fitting)
    paged_attention_prefill_triton(query, wide_keys, wide_values, fitting, scale, out, None, logit_softcap, sinks)
    if table.may_have_others:
        others = replace(batch, rows=table.others)
        paged_attention_prefill_triton(query, key_cache, value_cache, others, scale, out, None, logit_softcap, sinks)


def paged_attention_prefill(
    query: Tensor,
    key_cache: Cache,
    value_cache: Cache,
    batch: PrefillBatch,
    scale: float,
    out: Tensor,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    loops = loops_for(query) if isinstance(key_cache, Tensor) else None
    if loops is not None and logit_softcap is None and sinks is None and loops.takes_head_dim(query.shape[2]):
        loops.paged_attention_prefill(
            query,
            key_cache,
            value_cache,
            batch.block_table,
            batch.rows,
            batch.query_starts,
            batch.context_lens,
            batch.max_query_len,
            scale,
            out,
            sliding_window,
        )
        return
    if not query.is_cuda:
        paged_attention_prefill_reference(
            query, key_cache, value_cache, batch, scale, out, sliding_window, logit_softcap, sinks
        )
    elif isinstance(key_cache, Fp8Cache) and sliding_window is None and _pays_to_widen(query, key_cache, batch):
        assert isinstance(value_cache, Fp8Cache)
        paged_attention_prefill_widened_triton(query, key_cache, value_cache, batch, scale, out, logit_softcap, sinks)
    else:
        paged_attention_prefill_triton(
            query, key_cache, value_cache, batch, scale, out, sliding_window, logit_softcap, sinks
        )


def _pays_to_widen(query: Tensor, key_cache: Fp8Cache, batch: PrefillBatch) -> bool:
    group = query.shape[1] // key_cache.elements.shape[2]
    return batch.max_query_len * group >= _WIDENED_ROWS
