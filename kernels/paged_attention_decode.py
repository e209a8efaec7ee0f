"""PagedAttention for decode: one query per sequence against its paged keys and values (vLLM section 4.1).

    out[s, h] = softmax(scale * query[s, h] . key[0 : context_lens[s], h // G]) value[0 : context_lens[s], h // G]

where position p of sequence s lies in block block_table[s, p // P], at offset p % P, and G = H / K.

Tensors (S sequences, H query heads, K kv heads, D head dim, B blocks, P block size, M entries of a block table):
    query                    [S, H, D]     bf16 or fp32; last two dims dense, rows may be strided
    key_cache, value_cache   [B, P, K, D]  query's dtype; one layer's view: last three dims dense, blocks strided
    batch                                  made once a step by `decode_batch` from
        block_table          [S, M]        int32, last stride 1; entries past a sequence's last block are not used
        context_lens         [S]           int32: cached tokens, the query's own included; 0 marks a padding row
    out                      [S, H, D]     query's dtype, contiguous; written in place, padding rows with zeros

Cells at or past context_lens[s] are never read: they may hold another request's remains, NaN included.
Rounding: fp32 scores and accumulation, rounded once when written (the CPU's bf16 path rounds probabilities too).
Offsets are int64. S may be 0. Rows may stand in any order; neighbours of similar length are fastest in the
reference, longest first in the kernel. The reference is differentiable in the query, except for `out`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_MAX_PADDED_CELLS = 16_384  # of one group in the reference: gathered keys and values stay in a CPU's cache


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows that the reference pads to `longest` tokens and attends in one go.

    block_ids: num_blocks a row, one after the other, int32. mask [rows, 1, 1, longest], True where a cell counts,
    and unread, the flat numbers of gathered cells that do not: None if all rows are equally long.
    """

    rows: slice
    longest: int
    num_blocks: int
    block_ids: Tensor
    mask: Tensor | None
    unread: Tensor | None


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """The sequences of a step that decode, for every layer. `groups` is the reference's."""

    block_table: Tensor
    context_lens: Tensor
    block_size: int
    groups: tuple[DecodeGroup, ...]


def decode_batch(block_table: Tensor, context_lens: Tensor, block_size: int) -> DecodeBatch:
    assert block_table.dtype == context_lens.dtype == torch.int32 and block_table.stride(-1) == 1
    assert block_table.shape[0] == context_lens.shape[0]
    lens: list[int] = context_lens.tolist()
    groups = tuple(_group(block_table, context_lens, lens, rows, block_size) for rows in _similar_rows(lens))
    return DecodeBatch(block_table, context_lens, block_size, groups)


def _similar_rows(lens: Sequence[int]) -> Iterator[slice]:
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


def _group(block_table: Tensor, context_lens: Tensor, lens: Sequence[int], rows: slice, block_size: int) -> DecodeGroup:
    longest = max(lens[rows])
    num_blocks = -(-longest // block_size)
    block_ids = block_table[rows, :num_blocks]
    if min(lens[rows]) == longest:
        return DecodeGroup(rows, longest, num_blocks, block_ids.reshape(-1), None, None)
    cell = torch.arange(num_blocks * block_size, device=block_table.device)
    is_read = cell < context_lens[rows, None]
    # A table's unused entries may hold anything: block 0 stands in, and its cells are wiped like every unread one.
    block_ids = torch.where(is_read[:, ::block_size], block_ids, 0)
    unread = (~is_read).view(-1).nonzero().view(-1)
    return DecodeGroup(rows, longest, num_blocks, block_ids.view(-1), is_read[:, None, None, :longest], unread)


def paged_attention_decode_reference(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: DecodeBatch, scale: float, out: Tensor
) -> None:
    for group in batch.groups:
        if group.longest == 0:
            out[group.rows].zero_()
            continue
        rows = query[group.rows]
        num_kv_heads, head_dim = key_cache.shape[2:]
        # The query heads of one kv head form the rows of one small product: its keys are read once.
        attended = F.scaled_dot_product_attention(
            rows.reshape(rows.shape[0], num_kv_heads, -1, head_dim),
            _gather(key_cache, group),
            _gather(value_cache, group),
            attn_mask=group.mask,
            scale=scale,
        )
        out[group.rows] = attended.view(rows.shape)


def _gather(cache: Tensor, group: DecodeGroup) -> Tensor:
    """[rows, K, longest, D]; an unread cell's NaN would pass through a softmax weight of 0, so it is wiped."""
    block_size, num_kv_heads, head_dim = cache.shape[1:]
    blocks = cache.index_select(0, group.block_ids)
    if group.unread is not None:
        blocks.view(-1, num_kv_heads * head_dim).index_fill_(0, group.unread, 0)
    cells = blocks.view(-1, group.num_blocks * block_size, num_kv_heads, head_dim)
    return cells[:, : group.longest].transpose(1, 2)


def paged_attention_decode(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: DecodeBatch, scale: float, out: Tensor
) -> None:
    if not query.is_cuda:  # without the checks: torch makes its own, and on a CPU they would be a part of the step
        return paged_attention_decode_reference(query, key_cache, value_cache, batch, scale, out)
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    assert query.stride()[1:] == (head_dim, 1) and out.is_contiguous() and out.shape == query.shape
    assert num_heads % num_kv_heads == 0 and key_cache.shape[1:] == (batch.block_size, num_kv_heads, head_dim)
    assert key_cache.shape == value_cache.shape and key_cache.stride() == value_cache.stride()
    assert key_cache.stride()[1:] == (num_kv_heads * head_dim, head_dim, 1)
    assert query.dtype == key_cache.dtype == value_cache.dtype == out.dtype
    assert batch.context_lens.shape == (num_seqs,)
    return paged_attention_decode_reference(query, key_cache, value_cache, batch, scale, out)
