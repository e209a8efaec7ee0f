"""Write new keys and values into their slots of the paged cache (vLLM section 5.1: fused reshape and block write).

    for every token t with slot_mapping[t] >= 0:
        key_cache[slot // P, slot % P] = key[t];  value_cache likewise

Tensors (T tokens, B blocks, P block size, K kv heads, D head dim):
    key, value               [T, K, D]     bf16 or fp32; last two dims dense, rows may be strided
    key_cache, value_cache   [B, P, K, D]  one layer's view of the storage; last three dims dense, blocks strided.
                                           Written in place; cells of other slots are not touched.
    slot_mapping             [T]           int64: block_id * P + offset; -1 skips the token (padding). No slot twice.

The values are copied, cast to the cache's dtype. Offsets are int64: a pool may hold more than 2^31 elements. T may
be 0. Not differentiable (the cache is storage).
"""

from __future__ import annotations

import torch
from torch import Tensor


def reshape_and_cache_reference(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    kept = slot_mapping >= 0
    if not kept.all():
        key, value, slot_mapping = key[kept], value[kept], slot_mapping[kept]
    block_size = key_cache.shape[1]
    block, offset = slot_mapping // block_size, slot_mapping % block_size
    key_cache.index_put_((block, offset), key.to(key_cache.dtype))
    value_cache.index_put_((block, offset), value.to(value_cache.dtype))


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    num_tokens, num_kv_heads, head_dim = key.shape
    block_size = key_cache.shape[1]
    assert key.stride()[1:] == value.stride()[1:] == (head_dim, 1) and key.shape == value.shape
    assert key_cache.shape == value_cache.shape and key_cache.stride() == value_cache.stride()
    assert key_cache.stride()[1:] == (num_kv_heads * head_dim, head_dim, 1)
    assert key_cache.shape[1:] == (block_size, num_kv_heads, head_dim)
    assert slot_mapping.dtype == torch.int64 and slot_mapping.shape == (num_tokens,)
    reshape_and_cache_reference(key, value, key_cache, value_cache, slot_mapping)
