"""PagedAttention for decode: one query per sequence against its paged keys and values (vLLM section 4.1).

    out[s, h] = softmax(scale * query[s, h] . key[0 : context_lens[s], h // G]) value[0 : context_lens[s], h // G]

where position p of sequence s lies in block block_table[s, p // P], at offset p % P, and G = H / K.

Tensors (S sequences, H query heads, K kv heads, D head dim, B blocks, P block size, M entries of a block table):
    query                    [S, H, D]     bf16 or fp32; last two dims dense, rows may be strided
    key_cache, value_cache   [B, P, K, D]  query's dtype; one layer's view: last three dims dense, blocks strided
    block_table              [S, M]        int32, last stride 1; entries past a sequence's last block are not used
    context_lens             [S]           int32: cached tokens, the query's own included; 0 marks a padding row
    out                      [S, H, D]     query's dtype, contiguous; written in place, padding rows with zeros

Cells at or past context_lens[s] are never read: they may hold another request's remains, NaN included.
Rounding: fp32 scores and accumulation, rounded once when written (the CPU's bf16 path rounds probabilities too).
Offsets are int64. S may be 0. Rows may stand in any order; neighbours of similar length are fastest in the
reference, longest first in the kernel. The reference is differentiable in the query, except for `out`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

_MAX_PADDED_CELLS = 16_384  # of one group in the reference: gathered keys and values stay in a CPU's cache


def paged_attention_decode_reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    lens: list[int] = context_lens.tolist()
    for start, stop in _row_groups(lens):
        longest = max(lens[start:stop])
        if longest == 0:
            out[start:stop].zero_()
            continue
        rows = slice(start, stop)
        is_ragged = min(lens[rows]) < longest
        _attend_group(
            query[rows],
            key_cache,
            value_cache,
            block_table[rows],
            context_lens[rows] if is_ragged else None,
            longest,
            scale,
            out[rows],
        )


def _row_groups(lens: list[int]) -> Iterator[tuple[int, int]]:
    """Consecutive rows [start, stop) that may be padded to one length: at most half of the cells are padding."""
    start, shortest, longest = 0, 0, 0
    for row, length in enumerate(lens):
        lower, upper = min(shortest, length), max(longest, length)
        if row > start and (2 * lower < upper or upper * (row + 1 - start) > _MAX_PADDED_CELLS):
            yield start, row
            start, lower, upper = row, length, length
        elif row == start:
            lower = upper = length
        shortest, longest = lower, upper
    if lens:
        yield start, len(lens)


def _attend_group(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor | None,
    longest: int,
    scale: float,
    out: Tensor,
) -> None:
    """Rows padded to `longest` tokens; context_lens None says that all rows have exactly that many."""
    num_rows, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1], key_cache.shape[2]
    num_blocks = -(-longest // block_size)
    num_cells = num_blocks * block_size

    mask = unread = None
    if context_lens is not None:
        cell = torch.arange(num_cells, device=query.device)
        is_read = cell < context_lens[:, None]
        # A table's unused entries may hold anything: block 0 stands in, and its cells are wiped like every unread one.
        is_used = cell[::block_size] < context_lens[:, None]
        block_ids = torch.where(is_used, block_table[:, :num_blocks], 0).view(-1)
        mask = is_read[:, None, None, :longest]
        unread = (~is_read).view(-1).nonzero().view(-1)
    else:
        block_ids = block_table[:, :num_blocks].reshape(-1)

    def gather(cache: Tensor) -> Tensor:
        """[rows, K, longest, D]; a masked cell's NaN would pass through a softmax weight of 0, so it is wiped."""
        cells = cache.index_select(0, block_ids)
        if unread is not None:
            cells.view(num_rows * num_cells, -1).index_fill_(0, unread, 0)
        return cells.view(num_rows, num_cells, num_kv_heads, head_dim)[:, :longest].transpose(1, 2)

    # The query heads of one kv head form the rows of one small matrix product: keys are read once per kv head.
    grouped = query.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    attended = F.scaled_dot_product_attention(
        grouped, gather(key_cache), gather(value_cache), attn_mask=mask, scale=scale
    )
    out.view(grouped.shape).copy_(attended)


def paged_attention_decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1], key_cache.shape[2]
    assert query.stride()[1:] == (head_dim, 1) and out.is_contiguous() and out.shape == query.shape
    assert num_heads % num_kv_heads == 0 and key_cache.shape[1:] == (block_size, num_kv_heads, head_dim)
    assert key_cache.shape == value_cache.shape and key_cache.stride() == value_cache.stride()
    assert key_cache.stride()[1:] == (num_kv_heads * head_dim, head_dim, 1)
    assert query.dtype == key_cache.dtype == value_cache.dtype == out.dtype
    assert block_table.dtype == context_lens.dtype == torch.int32 and block_table.stride(-1) == 1
    assert block_table.shape[0] == num_seqs == context_lens.shape[0]
    paged_attention_decode_reference(query, key_cache, value_cache, block_table, context_lens, scale, out)
