"""Split-KV (Flash-Decoding, Dao et al. 2023): a batch of decodes cut into items of about equal work.

A sequence of n tiles of keys is cut into ceil(n / t) splits of t tiles at most. t is the same for the
whole batch, so that it makes about `splits_wanted` items of it, and never below `min_tiles`:

    t = max(ceil(all tiles of the batch / splits_wanted), min_tiles)

Items are numbered sequence by sequence. Under a sliding window a sequence has no more tiles than the window. The list
is made by a kernel, from lengths that only the device reads: what the host would prepare could be a step too old when
a CUDA graph is replayed.

Tensors (S sequences):
    context_lens  [S]            int32, contiguous; 0 marks a padding row, which has no item
    rows          [S]            int64, contiguous: the sequence's row of the block table
    returns       [num_items, 8] int32, of each item: row; first and end of its keys; sequence; number of the
                                 sequence's first item; its number of splits; two unused. Behind the last item all rows
                                 are -1. First and end are those of tiles, which begin at the window's first key; the
                                 last end is the sequence's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import tl, triton

ITEM_FIELDS = 8
_MOST_AT_ONE_LOOK = 1024  # sequences whose lengths a program reads together


class SplitRule(NamedTuple):
    """How a batch is cut; the letters are those of this file's head."""

    block_kv: int  # keys of a tile
    splits_wanted: int  # about as many items of the whole batch; enough to keep the device busy
    min_tiles: int  # of a split
    sliding_window: int | None = None

    def most_items(self, num_seqs: int, longest: int) -> int:
        """An upper bound on the items of `num_seqs` sequences, the longest of which has `longest` tokens."""
        longest = longest if self.sliding_window is None else min(longest, self.sliding_window)
        most_splits = max(1, -(-longest // (self.block_kv * self.min_tiles)))
        return min(num_seqs * most_splits, num_seqs + self.splits_wanted)


def split_items_reference(context_lens: Sequence[int], rows: Sequence[int], rule: SplitRule) -> list[tuple[int, ...]]:
    """Each item's six values."""
    window = rule.sliding_window
    starts = [0 if window is None else max(length - window, 0) for length in context_lens]
    tiles = [-(-(length - start) // rule.block_kv) for length, start in zip(context_lens, starts, strict=True)]
    split_tiles = max(-(-sum(tiles) // rule.splits_wanted), rule.min_tiles)
    items: list[tuple[int, ...]] = []
    for seq, (length, start, num_tiles) in enumerate(zip(context_lens, starts, tiles, strict=True)):
        if length == 0:
            continue
        num_splits = -(-num_tiles // split_tiles)
        borders = [start + split * num_tiles // num_splits * rule.block_kv for split in range(num_splits)]
        ends = [*borders[1:], length]
        first = len(items)
        items += [(rows[seq], begin, end, seq, first, num_splits) for begin, end in zip(borders, ends, strict=True)]
    return items


@triton.jit
@no_type_check
def _window_start(lens, SLIDING_WINDOW: tl.constexpr):
    if SLIDING_WINDOW > 0:
        return tl.maximum(lens - SLIDING_WINDOW, 0)
    return lens * 0


@triton.jit
@no_type_check
def _count_tiles(context_lens_ptr, seqs, num_seqs, SLIDING_WINDOW: tl.constexpr, BLOCK_KV: tl.constexpr):
    """Of each sequence; 0 past the last one."""
    lens = tl.load(context_lens_ptr + seqs, mask=seqs < num_seqs, other=0)
    return tl.cdiv(lens - _window_start(lens, SLIDING_WINDOW), BLOCK_KV)


@triton.jit(
    do_not_specialize=["num_seqs", "splits_wanted", "min_tiles"],
    do_not_specialize_on_alignment=["context_lens_ptr", "rows_ptr"],
)
@no_type_check
def _split_items_kernel(
    context_lens_ptr,
    rows_ptr,
    items_ptr,
    num_seqs,
    splits_wanted,
    min_tiles,
    SLIDING_WINDOW: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    BLOCK_SEQS: tl.constexpr,
    ONE_LOOK: tl.constexpr,
    FIELDS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: one item. ONE_LOOK: all sequences at once, num_seqs <= BLOCK_SEQS."""
    wait_for_inputs(PDL)
    item = tl.program_id(0)
    all_tiles = 0
    for base in range(0, 1 if ONE_LOOK else num_seqs, BLOCK_SEQS):
        seqs = base + tl.arange(0, BLOCK_SEQS)
        all_tiles += tl.sum(_count_tiles(context_lens_ptr, seqs, num_seqs, SLIDING_WINDOW, BLOCK_KV))
    split_tiles = tl.maximum(tl.cdiv(all_tiles, splits_wanted), min_tiles)

    seq = 0
    first_item = 0
    num_items = 0
    for base in range(0, 1 if ONE_LOOK else num_seqs, BLOCK_SEQS):
        seqs = base + tl.arange(0, BLOCK_SEQS)
        tiles = _count_tiles(context_lens_ptr, seqs, num_seqs, SLIDING_WINDOW, BLOCK_KV)
        splits = tl.cdiv(tiles, split_tiles)
        ends = num_items + tl.cumsum(splits, 0)
        is_before = (ends <= item) & (seqs < num_seqs)
        # One reduction for two facts: the last sequence that ends before the item, and where.
        last = tl.max(tl.where(is_before, (ends.to(tl.int64) << 32) + seqs + 1, 0))
        if last > 0:
            seq = (last & 0xFFFFFFFF).to(tl.int32)
            first_item = (last >> 32).to(tl.int32)
        if not ONE_LOOK:
            num_items += tl.sum(splits)

    item_ptr = items_ptr + item * FIELDS
    if seq >= num_seqs:
        tl.store(item_ptr, -1)
        return
    context_len = tl.load(context_lens_ptr + seq)
    start = _window_start(context_len, SLIDING_WINDOW)
    num_tiles = tl.cdiv(context_len - start, BLOCK_KV)
    num_splits = tl.cdiv(num_tiles, split_tiles)
    split = item - first_item
    tl.store(item_ptr, tl.load(rows_ptr + seq).to(tl.int32))
    tl.store(item_ptr + 1, start + split * num_tiles // num_splits * BLOCK_KV)
    tl.store(item_ptr + 2, tl.minimum(start + (split + 1) * num_tiles // num_splits * BLOCK_KV, context_len))
    tl.store(item_ptr + 3, seq)
    tl.store(item_ptr + 4, first_item)
    tl.store(item_ptr + 5, num_splits)


def split_items_triton(
    context_lens: Tensor, rows: Tensor, rule: SplitRule, num_items: int, most_at_one_look: int = _MOST_AT_ONE_LOOK
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. num_items: at least as many as there can be."""
    num_seqs = context_lens.shape[0]
    assert context_lens.dtype == torch.int32 and rows.dtype == torch.int64 and rows.shape == context_lens.shape
    assert context_lens.is_contiguous() and rows.is_contiguous()
    items = torch.empty((num_items, ITEM_FIELDS), dtype=torch.int32, device=context_lens.device)
    block_seqs = 32 if num_seqs <= 32 else max(256, triton.next_power_of_2(num_seqs))
    block_seqs = min(block_seqs, most_at_one_look)
    _split_items_kernel[(num_items,)](
        context_lens,
        rows,
        items,
        num_seqs,
        rule.splits_wanted,
        rule.min_tiles,
        SLIDING_WINDOW=rule.sliding_window or 0,
        BLOCK_KV=rule.block_kv,
        BLOCK_SEQS=block_seqs,
        ONE_LOOK=num_seqs <= block_seqs,
        FIELDS=ITEM_FIELDS,
        num_warps=1 if block_seqs <= 32 else 4,
        **dependent_launch(context_lens.device),
    )
    return items
