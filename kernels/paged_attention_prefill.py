"""Attention of prompts, or chunks of them, against paged keys and values: variable lengths, with a cached prefix.

Sequence s owns query rows query_starts[s] : query_starts[s + 1], its last ones: with N of them and a context of
C = context_lens[s] tokens (theirs included, already written to the cache), row i stands at position C - N + i and

    out[i, h] = softmax(scale * query[i, h] . key[0 : C - N + i + 1, h // G]) value[0 : C - N + i + 1, h // G]

where position p lies in block block_table[s, p // P], at offset p % P, and G = H / K.

Tensors (T query tokens, S sequences, H query heads, K kv heads, D head dim, B blocks, P block size, M table entries):
    query                    [T, H, D]     bf16 or fp32; last two dims dense, rows may be strided
    key_cache, value_cache   [B, P, K, D]  query's dtype; one layer's view: last three dims dense, blocks strided
    block_table              [S, M]        int32, last stride 1; entries past a sequence's last block are not used
    query_starts             [S + 1]       int32, not decreasing, from 0 to T
    context_lens             [S]           int32, >= the sequence's query rows
    max_query_len            host int, >= every sequence's query rows (sizes the launch)
    out                      [T, H, D]     query's dtype, contiguous; written in place

Cells at or past context_lens[s] are never read: they may hold another request's remains, NaN included.
Rounding: fp32 scores and accumulation, rounded once when written (the CPU's bf16 path rounds probabilities too).
Offsets are int64. S and T may be 0. The reference is differentiable in the query, except for `out`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def paged_attention_prefill_reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    out: Tensor,
) -> None:
    block_size = key_cache.shape[1]
    starts: list[int] = query_starts.tolist()
    for seq, context_len in enumerate(context_lens.tolist()):
        rows = slice(starts[seq], starts[seq + 1])
        num_blocks = -(-context_len // block_size)
        block_ids = block_table[seq, :num_blocks]
        keys = key_cache.index_select(0, block_ids).flatten(0, 1)[:context_len]
        values = value_cache.index_select(0, block_ids).flatten(0, 1)[:context_len]
        out[rows] = _causal_attention(query[rows], keys, values, scale)


def _causal_attention(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """query [N, H, D], the last N of C positions; keys and values [C, K, D]; returns [N, H, D]."""
    num_queries, context_len = query.shape[0], keys.shape[0]
    has_prefix = num_queries < context_len
    mask = None
    if has_prefix:
        mask = torch.ones(num_queries, context_len, dtype=torch.bool, device=query.device)
        mask = mask.tril(context_len - num_queries)
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=not has_prefix,
        scale=scale,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)


def paged_attention_prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    max_query_len: int,
    scale: float,
    out: Tensor,
) -> None:
    num_heads, head_dim = query.shape[1:]
    block_size, num_kv_heads = key_cache.shape[1], key_cache.shape[2]
    assert query.stride()[1:] == (head_dim, 1) and out.is_contiguous() and out.shape == query.shape
    assert num_heads % num_kv_heads == 0 and key_cache.shape[1:] == (block_size, num_kv_heads, head_dim)
    assert key_cache.shape == value_cache.shape and key_cache.stride() == value_cache.stride()
    assert key_cache.stride()[1:] == (num_kv_heads * head_dim, head_dim, 1)
    assert query.dtype == key_cache.dtype == value_cache.dtype == out.dtype
    assert block_table.dtype == query_starts.dtype == context_lens.dtype == torch.int32
    assert block_table.stride(-1) == 1 and block_table.shape[0] == context_lens.shape[0]
    assert query_starts.shape[0] == context_lens.shape[0] + 1 and max_query_len >= 0
    paged_attention_prefill_reference(
        query, key_cache, value_cache, block_table, query_starts, context_lens, scale, out
    )
