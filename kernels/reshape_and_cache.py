"""Write new keys and values into their slots of the paged cache (PagedAttention, section 5.1: one fused kernel).

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
from functools import cached_property
from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton


@dataclass(frozen=True)
class CacheSlots:
    """Where a step's tokens go, in every layer.

    `kept` and `cells` are the reference's: they read the slots, for which a GPU would have to be waited for.
    """

    slot_mapping: Tensor
    block_size: int

    @cached_property
    def kept(self) -> Tensor | None:
        """The tokens that have a slot; None: all."""
        has_slot = self.slot_mapping >= 0
        return None if bool(has_slot.all()) else has_slot.nonzero().view(-1)

    @cached_property
    def cells(self) -> tuple[Tensor, Tensor]:
        """Block and offset of each kept token."""
        written = self.slot_mapping if self.kept is None else self.slot_mapping[self.kept]
        return written // self.block_size, written % self.block_size


def cache_slots(slot_mapping: Tensor, block_size: int) -> CacheSlots:
    """Reads no value of the tensor, which may change before a CUDA graph is replayed."""
    assert slot_mapping.dtype == torch.int64
    return CacheSlots(slot_mapping, block_size)


def reshape_and_cache_reference(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: CacheSlots
) -> None:
    if slots.kept is not None:
        key, value = key[slots.kept], value[slots.kept]
    key_cache.index_put_(slots.cells, key.to(key_cache.dtype))
    value_cache.index_put_(slots.cells, value.to(value_cache.dtype))


@triton.jit(do_not_specialize_on_alignment=["slot_mapping_ptr"])
@no_type_check
def _reshape_and_cache_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    key_stride_token,
    value_stride_token,
    cache_stride_block,
    BLOCK_SIZE: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program: one token, all its heads (SIZE elements)."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    element = tl.arange(0, BLOCK)
    is_element = element < SIZE
    cell = slot // BLOCK_SIZE * cache_stride_block + slot % BLOCK_SIZE * SIZE + element
    key = tl.load(key_ptr + token * key_stride_token + element, mask=is_element)
    value = tl.load(value_ptr + token * value_stride_token + element, mask=is_element)
    tl.store(key_cache_ptr + cell, key.to(key_cache_ptr.dtype.element_ty), mask=is_element)
    tl.store(value_cache_ptr + cell, value.to(value_cache_ptr.dtype.element_ty), mask=is_element)


def reshape_and_cache_triton(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: CacheSlots
) -> None:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_tokens, num_kv_heads, head_dim = key.shape
    assert key.stride()[1:] == value.stride()[1:] == (head_dim, 1) and key.shape == value.shape
    assert key_cache.shape == value_cache.shape and key_cache.stride() == value_cache.stride()
    assert key_cache.stride()[1:] == (num_kv_heads * head_dim, head_dim, 1)
    assert key_cache.shape[1:] == (slots.block_size, num_kv_heads, head_dim)
    assert slots.slot_mapping.shape == (num_tokens,) and slots.slot_mapping.is_contiguous()
    if num_tokens == 0:
        return
    size = num_kv_heads * head_dim
    block = triton.next_power_of_2(size)
    _reshape_and_cache_kernel[(num_tokens,)](
        key,
        value,
        key_cache,
        value_cache,
        slots.slot_mapping,
        key.stride(0),
        value.stride(0),
        key_cache.stride(0),
        BLOCK_SIZE=slots.block_size,
        SIZE=size,
        BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
    )


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: CacheSlots) -> None:
    if not key.is_cuda:  # without the checks: torch makes its own, and on a CPU they would be a part of the step
        return reshape_and_cache_reference(key, value, key_cache, value_cache, slots)
    return reshape_and_cache_triton(key, value, key_cache, value_cache, slots)
