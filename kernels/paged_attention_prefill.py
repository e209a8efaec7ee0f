"""Attention of prompts, or chunks of them, against paged keys and values: variable lengths, with a cached prefix.

Sequence s owns query rows query_starts[s] : query_starts[s + 1], its last ones: with N of them and a context of
C = context_lens[s] tokens (theirs included, already written to the cache), row i stands at position C - N + i and

    out[i, h] = softmax(scale * query[i, h] . key[0 : C - N + i + 1, h // G]) value[0 : C - N + i + 1, h // G]

where position p lies in block block_table[s, p // P], at offset p % P, and G = H / K.

Tensors (T query tokens, S sequences, H query heads, K kv heads, D head dim, B blocks, P block size, M table entries):
    query                    [T, H, D]     bf16 or fp32; last two dims dense, rows may be strided
    key_cache, value_cache   [B, P, K, D]  query's dtype; one layer's view: last three dims dense, blocks strided
    batch                                  made once a step by `prefill_batch` from
        block_table          [S, M]        int32, last stride 1; entries past a sequence's last block are not used
        query_starts         [S + 1]       int32, increasing, from 0 to T
        context_lens         [S]           int32, >= the sequence's query rows
        max_query_len        host int, >= every sequence's query rows (sizes the launch)
    out                      [T, H, D]     query's dtype, contiguous; written in place

Cells at or past context_lens[s] are never read: they may hold another request's remains, NaN included.
Rounding: fp32 scores and accumulation, rounded once when written (the CPU's bf16 path rounds probabilities too).
Offsets are int64. S and T may be 0. The reference is differentiable in the query, except for `out`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PrefillSequence:
    """One sequence as the reference sees it: its query rows, its blocks, and the causal mask [N, C] if it has a
    prefix (None: rows and context are the same tokens)."""

    rows: slice
    context_len: int
    block_ids: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillBatch:
    """The sequences of a step that compute several tokens, for every layer. `sequences` is the reference's."""

    block_table: Tensor
    query_starts: Tensor
    context_lens: Tensor
    max_query_len: int
    block_size: int
    sequences: tuple[PrefillSequence, ...]


def prefill_batch(
    block_table: Tensor, query_starts: Tensor, context_lens: Tensor, max_query_len: int, block_size: int
) -> PrefillBatch:
    assert block_table.dtype == query_starts.dtype == context_lens.dtype == torch.int32
    assert block_table.stride(-1) == 1 and block_table.shape[0] == context_lens.shape[0]
    assert query_starts.shape[0] == context_lens.shape[0] + 1
    rows = [slice(start, stop) for start, stop in pairwise(query_starts.tolist())]
    sequences = tuple(
        _sequence(block_table[seq], rows[seq], context_len, block_size)
        for seq, context_len in enumerate(context_lens.tolist())
    )
    return PrefillBatch(block_table, query_starts, context_lens, max_query_len, block_size, sequences)


def _sequence(block_ids: Tensor, rows: slice, context_len: int, block_size: int) -> PrefillSequence:
    num_queries, mask = rows.stop - rows.start, None
    if num_queries < context_len:
        mask = torch.ones(num_queries, context_len, dtype=torch.bool, device=block_ids.device)
        mask = mask.tril_(context_len - num_queries)
    return PrefillSequence(rows, context_len, block_ids[: -(-context_len // block_size)], mask)


def paged_attention_prefill_reference(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: PrefillBatch, scale: float, out: Tensor
) -> None:
    for sequence in batch.sequences:
        attended = F.scaled_dot_product_attention(
            query[sequence.rows].transpose(0, 1)[None],
            _gather(key_cache, sequence),
            _gather(value_cache, sequence),
            attn_mask=sequence.mask,
            is_causal=sequence.mask is None,
            scale=scale,
            enable_gqa=True,
        )
        out[sequence.rows] = attended[0].transpose(0, 1)


def _gather(cache: Tensor, sequence: PrefillSequence) -> Tensor:
    """[1, K, context_len, D]"""
    cells = cache.index_select(0, sequence.block_ids).flatten(0, 1)[: sequence.context_len]
    return cells.transpose(0, 1)[None]


def paged_attention_prefill(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: PrefillBatch, scale: float, out: Tensor
) -> None:
    if not query.is_cuda:  # without the checks: torch makes its own, and on a CPU they would be a part of the step
        return paged_attention_prefill_reference(query, key_cache, value_cache, batch, scale, out)
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = key_cache.shape[2]
    assert query.stride()[1:] == (head_dim, 1) and out.is_contiguous() and out.shape == query.shape
    assert num_heads % num_kv_heads == 0 and key_cache.shape[1:] == (batch.block_size, num_kv_heads, head_dim)
    assert key_cache.shape == value_cache.shape and key_cache.stride() == value_cache.stride()
    assert key_cache.stride()[1:] == (num_kv_heads * head_dim, head_dim, 1)
    assert query.dtype == key_cache.dtype == value_cache.dtype == out.dtype
    return paged_attention_prefill_reference(query, key_cache, value_cache, batch, scale, out)
