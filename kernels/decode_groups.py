"""Decode attention on a CPU: rows of similar length are padded to the same length and computed together.

A part of the reference in kernels/paged_attention_decode.py; tensors and letters as there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.fp8_cache import Cache, read_blocks

_MAX_PADDED_CELLS = 16_384  # per group, so that gathered keys and values stay in a CPU's cache
_MANY_VECTORS = 1500  # rows times cells times kv heads


@dataclass(frozen=True)
class DecodeGroup:
    """Rows that the reference pads to the blocks of the longest one and computes at once; lengths in tokens. With a
    sliding window a row starts at the block of the first token that it sees, and its length is counted from there.

    block_ids [rows * num_blocks] int64, row after row. hidden [rows, 1, 1, num_blocks * P]: True where a cell does not
    count. unread: the flat indices of those cells.
    """

    rows: slice
    shortest: int
    longest: int
    num_blocks: int
    block_ids: Tensor
    hidden: Tensor
    unread: Tensor
    is_windowed: bool
    _vectors: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def vectors(self, cache: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
        """[rows * K * G * cells] int64: where each cell's vector is in `_as_vectors(cache)`; and the index at which
        each query's cells begin. A cell that does not count is replaced by its sequence's first one that does. Made
        once for all layers with this window."""
        block_size, num_kv_heads, head_dim = cache.shape[1:]
        key = (cache.stride(0), block_size, num_kv_heads, head_dim, group_size)
        if key not in self._vectors:
            blocks = self.block_ids[:, None] * (cache.stride(0) // head_dim)
            offsets = torch.arange(block_size, device=blocks.device) * num_kv_heads
            cells = (blocks + offsets).view(self.hidden.shape[0], 1, -1)
            first = self.hidden[:, 0].int().argmin(-1, keepdim=True)
            cells = torch.where(self.hidden[:, 0], cells.gather(-1, first), cells)
            heads = torch.arange(num_kv_heads, device=blocks.device)
            vectors = (cells + heads[:, None]).repeat_interleave(group_size, 1).view(-1)
            self._vectors[key] = vectors, torch.arange(0, len(vectors), cells.shape[-1], device=blocks.device)
        return self._vectors[key]


def similar_rows(lens: Sequence[int]) -> Iterator[slice]:
    """Consecutive rows that may be padded to one length: at most half of the cells are padding."""
    start, shortest, longest = 0, 0, 0
    for row, length in enumerate(lens):
        lower, upper = (length, length) if row == start else (min(shortest, length), max(longest, length))
        if 2 * lower < upper or (row > start and upper * (row + 1 - start) > _MAX_PADDED_CELLS):
            yield slice(start, row)
            start, lower, upper = row, length, length
        shortest, longest = lower, upper
    if lens:
        yield slice(start, len(lens))


def decode_group(
    block_table: Tensor,
    context_lens: Tensor,
    lens: Sequence[int],
    rows: slice,
    block_size: int,
    sliding_window: int | None = None,
) -> DecodeGroup:
    """The group of these rows of a batch. lens: its `context_lens` on the host."""
    if sliding_window is not None:
        return _windowed_group(block_table, context_lens, lens, rows, block_size, sliding_window)
    shortest, longest = min(lens[rows]), max(lens[rows])
    num_blocks = -(-longest // block_size)
    cell = torch.arange(num_blocks * block_size, device=block_table.device)
    is_read = cell < context_lens[rows, None]
    return _group(rows, shortest, longest, block_table[rows, :num_blocks], is_read, is_windowed=False)


def _windowed_group(
    block_table: Tensor, context_lens: Tensor, lens: Sequence[int], rows: slice, block_size: int, sliding_window: int
) -> DecodeGroup:
    seen_from = [max(0, length - sliding_window) for length in lens[rows]]
    first_blocks = [first // block_size for first in seen_from]
    held = [length - first * block_size for length, first in zip(lens[rows], first_blocks, strict=True)]
    num_blocks = -(-max(held) // block_size)
    begins, firsts = torch.tensor([seen_from, first_blocks], device=block_table.device)[:, :, None]
    cell = torch.arange(num_blocks * block_size, device=block_table.device)
    position = firsts * block_size + cell
    is_read = (position >= begins) & (position < context_lens[rows, None])
    places = (firsts + cell[:num_blocks]).clamp_max(block_table.shape[1] - 1)
    return _group(rows, min(held), max(held), block_table[rows].gather(1, places), is_read, is_windowed=True)


def _group(
    rows: slice, shortest: int, longest: int, table: Tensor, is_read: Tensor, *, is_windowed: bool
) -> DecodeGroup:
    # A table's unused entries may hold anything: block 0 is used instead, and its cells are zeroed like all unread
    # ones.
    num_blocks = table.shape[1]
    is_used = is_read.view(len(table), num_blocks, -1).any(-1) if num_blocks else is_read
    block_ids = torch.where(is_used, table, 0).long().view(-1)
    unread = (~is_read).view(-1).nonzero().view(-1)
    return DecodeGroup(rows, shortest, longest, num_blocks, block_ids, ~is_read[:, None, None], unread, is_windowed)


def pays_to_attend_many(grouped: Tensor, group: DecodeGroup) -> bool:
    """grouped [rows, K, G, D]. Whether `attend_many` is faster than SDPA."""
    num_rows, num_kv_heads, group_size, _ = grouped.shape
    return group_size == 1 or num_rows * num_kv_heads * group.longest >= _MANY_VECTORS


def attend_many(
    grouped: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    group: DecodeGroup,
    scale: float,
) -> Tensor:
    """grouped and result [rows, K, G, D]. All heads of all rows in one product, where SDPA takes one after another; and
    values are summed in place, without a copy.

    Scores are rounded before the softmax, as in transformers' eager attention. Measured on one core with AVX512-bf16,
    milliseconds of 12 layers (SDPA, or for 32 products and more two of them / this), rows x tokens:
        heads in groups   1 x 168      1 x 1000    2 x 1000     4 x 168      8 x 168      16 x 168     16 x 400
        9 in 3, 64 dims   0.92 / 1.5   3.5 / 3.4   6.6 / 5.1    2.8 / 2.6    5.3 / 4.0    8.5 / 6.7    19 / 14
        12 alone, 64      4.1 / 2.3    28 / 7.4    72 / 14      6.3 / 5.4    14 / 10      32 / 20      84 / 53
        32 in 8, 64       1.6 / 1.9    6.8 / 6.2   16 / 11      5.3 / 5.0    9.3 / 8.2    20 / 16      61 / 41
    On two cores SDPA gains nothing, this a fifth: 30 layers of 9 heads in 3, 1 x 1000 12 / 8.1, 3 x 168 5.6 / 5.1.
    """
    keys = gather_group(key_cache, group, grouped.dtype, wipes=grouped.requires_grad).contiguous().flatten(0, 1)
    query = grouped.flatten(0, 1)
    scores = torch.baddbmm(query.new_empty(1), query, keys.mT, beta=0, alpha=scale).view(*grouped.shape[:3], -1)
    # Usually only a few cells at the end are hidden; filling all would take a quarter of the product's time.
    first = 0 if group.is_windowed else group.shortest
    scores[..., first:].masked_fill_(group.hidden[..., first:], float("-inf"))
    weights = scores.softmax(-1)
    vectors, starts = group.vectors(value_cache, grouped.shape[2])
    # One bag per query: the weighted sum of its cells' values.
    summed = torch.embedding_bag(_as_vectors(value_cache), vectors, starts, mode=0, per_sample_weights=weights.view(-1))
    return summed[0].view(grouped.shape)


def _as_vectors(cache: Tensor) -> Tensor:
    """[N, D]: the storage from this layer's first vector to its last, with other layers' vectors in between."""
    block_size, num_kv_heads, head_dim = cache.shape[1:]
    assert cache.stride(0) % head_dim == 0
    num_vectors = (len(cache) - 1) * (cache.stride(0) // head_dim) + block_size * num_kv_heads
    return cache.as_strided((num_vectors, head_dim), (head_dim, 1))


def gather_group(cache: Cache, group: DecodeGroup, dtype: torch.dtype, wipes: bool = True) -> Tensor:
    """[rows, K, num_blocks * P, D] of `dtype`. NaN in an unread cell would survive a softmax weight of 0, so these are
    zeroed."""
    blocks = read_blocks(cache, group.block_ids, dtype)
    block_size, num_kv_heads, head_dim = blocks.shape[1:]
    if wipes and len(group.unread):
        blocks.view(-1, num_kv_heads * head_dim).index_fill_(0, group.unread, 0)
    return blocks.view(-1, group.num_blocks * block_size, num_kv_heads, head_dim).transpose(1, 2)
