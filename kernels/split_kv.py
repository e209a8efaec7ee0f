"""Split-KV (Flash-Decoding, Dao et al. 2023): a batch of decodes cut into items of about equal work.

A sequence of n tiles of keys is cut into ceil(n / t) splits, at least one, of t tiles at most. t is the same for the
whole batch, so that it makes about `splits_wanted` items of it, and never below `min_tiles`:

    t = max(ceil(all tiles of the batch / splits_wanted), min_tiles)

Items are numbered sequence by sequence. Every program finds its own item from the lengths alone: what the host would
prepare for all of them could be a step too old when a CUDA graph is replayed. Under a sliding window a sequence has no
more tiles than the window.

Tensors:
    context_lens  [S]  int32, contiguous; 0 marks a padding row, which has one item all the same
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

from kernels.optional_triton import tl, triton


def split_items_reference(
    context_lens: Sequence[int], block_kv: int, splits_wanted: int, min_tiles: int, sliding_window: int | None = None
) -> list[tuple[int, int, int]]:
    """Each item's (sequence, first item of that sequence, tiles a split)."""
    seen = [length if sliding_window is None else min(length, sliding_window) for length in context_lens]
    tiles = [-(-length // block_kv) for length in seen]
    split_tiles = max(-(-sum(tiles) // splits_wanted), min_tiles)
    items: list[tuple[int, int, int]] = []
    for seq, num_tiles in enumerate(tiles):
        num_splits = max(-(-num_tiles // split_tiles), 1)
        items += [(seq, len(items), split_tiles)] * num_splits
    return items


@triton.jit
@no_type_check
def _count_tiles(context_lens_ptr, seqs, num_seqs, SLIDING_WINDOW: tl.constexpr, BLOCK_KV: tl.constexpr):
    """Of each sequence; 0 past the last one."""
    lens = tl.load(context_lens_ptr + seqs, mask=seqs < num_seqs, other=0)
    if SLIDING_WINDOW > 0:
        lens = tl.minimum(lens, SLIDING_WINDOW)
    return tl.cdiv(lens, BLOCK_KV)


@triton.jit
@no_type_check
def find_item(
    item,
    context_lens_ptr,
    num_seqs,
    splits_wanted,
    min_tiles,
    SLIDING_WINDOW: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    BLOCK_SEQS: tl.constexpr,
    ONE_LOOK: tl.constexpr,
):
    """(sequence, first item of that sequence, tiles a split), as one program's values. ONE_LOOK: all sequences at once,
    num_seqs <= BLOCK_SEQS."""
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
        splits = tl.maximum(tl.cdiv(tiles, split_tiles), 1)
        ends = num_items + tl.cumsum(splits, 0)
        is_before = (ends <= item) & (seqs < num_seqs)
        # One reduction for two facts: the last sequence that ends before the item, and where.
        last = tl.max(tl.where(is_before, (ends.to(tl.int64) << 32) + seqs + 1, 0))
        if last > 0:
            seq = (last & 0xFFFFFFFF).to(tl.int32)
            first_item = (last >> 32).to(tl.int32)
        if not ONE_LOOK:
            num_items += tl.sum(splits)
    return seq, first_item, split_tiles
