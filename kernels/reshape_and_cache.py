"""Write new keys and values into their slots of the paged cache (vLLM section 5.1: fused reshape and block write).

    for every token t with slot_mapping[t] >= 0:
        key_cache[slot // P, slot % P] = key[t];  value_cache likewise

Tensors (T tokens, B blocks, P block size, K kv heads, D head dim):
    key, value               [T, K, D]     bf16 or fp32; last two dims dense, rows may be strided
    key_cache, value_cache   [B, P, K, D]  one layer's view of the storage; last three dims dense, blocks strided.
                                           Written in place; cells of other slots are not touched.
    slots                                  made once a step by `cache_slots` from
        slot_mapping         [T]           int64: block_id * P + offset; -1 skips the token (padding). No slot twice.

The values are copied, cast to the cache's dtype. Offsets are int64: a pool may hold more than 2^31 elements. T may
be 0. Not differentiable (the cache is storage).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CacheSlots:
    """Where a step's tokens go, in every layer.

    For the reference: `kept` are the tokens that have a slot (None: all), `block` and `offset` their cells.
    """

    slot_mapping: Tensor
    block_size: int
    kept: Tensor | None
    block: Tensor
    offset: Tensor


def cache_slots(slot_mapping: Tensor, block_size: int) -> CacheSlots:
    assert slot_mapping.dtype == torch.int64
    has_slot = slot_mapping >= 0
    kept = None if bool(has_slot.all()) else has_slot.nonzero().view(-1)
    written = slot_mapping if kept is None else slot_mapping[kept]
    return CacheSlots(slot_mapping, block_size, kept, written // block_size, written % block_size)


def reshape_and_cache_reference(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: CacheSlots
) -> None:
    if slots.kept is not None:
        key, value = key[slots.kept], value[slots.kept]
    cells = (slots.block, slots.offset)
    key_cache.index_put_(cells, key.to(key_cache.dtype))
    value_cache.index_put_(cells, value.to(value_cache.dtype))


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: CacheSlots) -> None:
    if not key.is_cuda:  # without the checks: torch makes its own, and on a CPU they would be a part of the step
        return reshape_and_cache_reference(key, value, key_cache, value_cache, slots)
    num_tokens, num_kv_heads, head_dim = key.shape
    assert key.stride()[1:] == value.stride()[1:] == (head_dim, 1) and key.shape == value.shape
    assert key_cache.shape == value_cache.shape and key_cache.stride() == value_cache.stride()
    assert key_cache.stride()[1:] == (num_kv_heads * head_dim, head_dim, 1)
    assert key_cache.shape[1:] == (slots.block_size, num_kv_heads, head_dim)
    assert slots.slot_mapping.shape == (num_tokens,)
    return reshape_and_cache_reference(key, value, key_cache, value_cache, slots)
