"""Split-KV (Flash-Decoding, Dao et al. 2023): a batch of decodes cut into items of about equal work.

A sequence of n tiles of keys is cut into ceil(n / t) splits of at most t tiles. t is the same for the whole batch,
chosen so that there are about `splits_wanted` items, and at least `min_tiles`:

    t = max(ceil(all tiles of the batch / splits_wanted), min_tiles)

Items are numbered sequence by sequence, those with the longest splits first: the device runs programs in order, and the
last ones should be short (Graham 1969, longest processing time first). With a sliding window a sequence has no more
tiles than the window. A kernel makes the list, from lengths that only the device reads: a list made by the host could
be one step old when a CUDA graph is replayed.

Tensors (S sequences):
    context_lens  [S]            int32, contiguous; 0 marks a padding row, which has no item
    rows          [S]            int64, contiguous: the sequence's row of the block table
    returns       [num_items, 8] int32, per item: row; first and end of its keys; sequence; number of the
                                 sequence's first item; its number of splits; two unused. After the last item all rows
                                 are -1. Keys begin and end at tiles, which begin at the window's first key; the
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
_MOST_AT_ONE_LOOK = 1024  # sequences whose lengths a program reads at once
_SPLITS_AT_ONCE = 128  # items that a program writes at once


class SplitRule(NamedTuple):
    """How a batch is cut; letters as in this file's contract."""

    block_kv: int  # keys per tile
    splits_wanted: int  # about how many items the batch makes; enough to keep the device busy
    min_tiles: int  # least tiles of a split
    sliding_window: int | None = None

    def most_items(self, num_seqs: int, longest: int) -> int:
        """An upper bound on the items of `num_seqs` sequences, the longest of which has `longest` tokens."""
        longest = longest if self.sliding_window is None else min(longest, self.sliding_window)
        most_splits = max(1, -(-longest // (self.block_kv * self.min_tiles)))
        return min(num_seqs * most_splits, num_seqs + self.splits_wanted)


def split_items_reference(context_lens: Sequence[int], rows: Sequence[int], rule: SplitRule) -> list[tuple[int, ...]]:
    """The six values of each item."""
    window = rule.sliding_window
    starts = [0 if window is None else max(length - window, 0) for length in context_lens]
    tiles = [-(-(length - start) // rule.block_kv) for length, start in zip(context_lens, starts, strict=True)]
    split_tiles = max(-(-sum(tiles) // rule.splits_wanted), rule.min_tiles)
    splits = [-(-num_tiles // split_tiles) for num_tiles in tiles]
    longest_split = [-(-num_tiles // max(num_splits, 1)) for num_tiles, num_splits in zip(tiles, splits, strict=True)]
    items: list[tuple[int, ...]] = []
    for seq in sorted(range(len(rows)), key=longest_split.__getitem__, reverse=True):
        num_splits, first = splits[seq], len(items)
        if num_splits == 0:
            continue
        borders = [starts[seq] + split * tiles[seq] // num_splits * rule.block_kv for split in range(num_splits)]
        ends = [*borders[1:], context_lens[seq]]
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
    """Tiles of each sequence; 0 past the last one."""
    lens = tl.load(context_lens_ptr + seqs, mask=seqs < num_seqs, other=0)
    return tl.cdiv(lens - _window_start(lens, SLIDING_WINDOW), BLOCK_KV)


@triton.jit
@no_type_check
def _longest_split(tiles, splits):
    """The longest split in tiles; 0 for padding."""
    return tl.cdiv(tiles, tl.maximum(splits, 1))


@triton.jit(
    do_not_specialize=["num_seqs", "num_items", "splits_wanted", "min_tiles"],
    do_not_specialize_on_alignment=["context_lens_ptr", "rows_ptr"],
)
@no_type_check
def _split_items_kernel(
    context_lens_ptr,
    rows_ptr,
    items_ptr,
    num_seqs,
    num_items,
    splits_wanted,
    min_tiles,
    SLIDING_WINDOW: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    BLOCK_SEQS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    ONE_LOOK: tl.constexpr,
    FIELDS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: one sequence. It writes that sequence's items, and its share of the unused ones. ONE_LOOK: reads all
    sequences at once, num_seqs <= BLOCK_SEQS."""
    wait_for_inputs(PDL)
    seq = tl.program_id(0)
    all_tiles = 0
    for base in range(0, 1 if ONE_LOOK else num_seqs, BLOCK_SEQS):
        others = base + tl.arange(0, BLOCK_SEQS)
        all_tiles += tl.sum(_count_tiles(context_lens_ptr, others, num_seqs, SLIDING_WINDOW, BLOCK_KV))
    split_tiles = tl.maximum(tl.cdiv(all_tiles, splits_wanted), min_tiles)

    context_len = tl.load(context_lens_ptr + seq)
    start = _window_start(context_len, SLIDING_WINDOW)
    num_tiles = tl.cdiv(context_len - start, BLOCK_KV)
    num_splits = tl.cdiv(num_tiles, split_tiles)
    longest_split = _longest_split(num_tiles, num_splits)
    first_item = 0
    used_items = 0
    for base in range(0, 1 if ONE_LOOK else num_seqs, BLOCK_SEQS):
        others = base + tl.arange(0, BLOCK_SEQS)
        tiles = _count_tiles(context_lens_ptr, others, num_seqs, SLIDING_WINDOW, BLOCK_KV)
        splits = tl.cdiv(tiles, split_tiles)
        longest = _longest_split(tiles, splits)
        is_before = (longest > longest_split) | ((longest == longest_split) & (others < seq))
        # One reduction for two sums; neither reaches 2^31.
        sums = tl.sum((splits.to(tl.int64) << 32) + tl.where(is_before, splits, 0))
        first_item += (sums & 0xFFFFFFFF).to(tl.int32)
        used_items += (sums >> 32).to(tl.int32)

    table_row = tl.load(rows_ptr + seq).to(tl.int32)
    for base in range(0, num_splits, BLOCK_SPLITS):
        split = base + tl.arange(0, BLOCK_SPLITS)
        is_split = split < num_splits
        item_ptr = items_ptr + (first_item + split) * FIELDS
        begin = start + split * num_tiles // num_splits * BLOCK_KV
        end = tl.minimum(start + (split + 1) * num_tiles // num_splits * BLOCK_KV, context_len)
        tl.store(item_ptr, table_row, mask=is_split)
        tl.store(item_ptr + 1, begin, mask=is_split)
        tl.store(item_ptr + 2, end, mask=is_split)
        tl.store(item_ptr + 3, seq, mask=is_split)
        tl.store(item_ptr + 4, first_item, mask=is_split)
        tl.store(item_ptr + 5, num_splits, mask=is_split)
    for item in range(used_items + seq, num_items, num_seqs):
        tl.store(items_ptr + item * FIELDS, -1)


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
    _split_items_kernel[(num_seqs,)](
        context_lens,
        rows,
        items,
        num_seqs,
        num_items,
        rule.splits_wanted,
        rule.min_tiles,
        SLIDING_WINDOW=rule.sliding_window or 0,
        BLOCK_KV=rule.block_kv,
        BLOCK_SEQS=block_seqs,
        BLOCK_SPLITS=_SPLITS_AT_ONCE,
        ONE_LOOK=num_seqs <= block_seqs,
        FIELDS=ITEM_FIELDS,
        num_warps=1 if block_seqs <= 32 else 4,
        **dependent_launch(context_lens.device),
    )
    return items
