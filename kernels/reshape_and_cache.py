"""Write new keys and values into their slots of the paged cache (PagedAttention, section 5.1: one fused kernel).

    for every token t with slot_mapping[t] >= 0:
        key_cache[slot // P, slot % P] = key[t];  value_cache likewise

Tensors (T tokens, B blocks, P block size, K kv heads, D head dim):
    key, value               [T, K, D]     bf16 or fp32; last two dims contiguous, rows may be strided
    key_cache, value_cache   [B, P, K, D]  one layer's view; last three dims contiguous, blocks strided.
                                           Written in place; cells of other slots are not touched. Or both fp8
                                           with exponents (kernels/fp8_cache.py)
    slots                                  made once per step by `cache_slots` from
        slot_mapping         [T]           int64: block_id * P + offset; -1 skips the token (padding). All distinct

The values are copied, cast to the cache's dtype, or rounded to fp8 elements. Offsets are int64: a pool may hold more
than 2^31 elements. T may be 0. Not differentiable (the cache is storage).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import no_type_check

import torch
from torch import Tensor

from kernels.fp8_cache import (
    Cache,
    check_cache,
    elements_of,
    exponent_for,
    exponents_of,
    inverse_scale_of,
    write_cells,
)
from kernels.optional_triton import tl, triton


@dataclass(frozen=True)
class CacheSlots:
    """Where a step's tokens go, in every layer.

    `kept` and `cells` are for the reference: they read the slots, for which a GPU would have to be waited for.
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
    """Reads no values of the tensor, which may change before a CUDA graph is replayed."""
    assert slot_mapping.dtype == torch.int64
    return CacheSlots(slot_mapping, block_size)


def reshape_and_cache_reference(
    key: Tensor, value: Tensor, key_cache: Cache, value_cache: Cache, slots: CacheSlots
) -> None:
    if slots.kept is not None:
        key, value = key[slots.kept], value[slots.kept]
    write_cells(key_cache, slots.cells, key)
    write_cells(value_cache, slots.cells, value)


@triton.jit
@no_type_check
def _write_heads(
    heads_ptr,
    cache_ptr,
    exponents_ptr,
    cell,
    cell_exponent,
    head,
    dim,
    is_head,
    HEAD_DIM: tl.constexpr,
    IS_FP8: tl.constexpr,
):
    """Writes one token's heads, from `heads_ptr`, to their cell."""
    is_element = is_head[:, None] & (dim < HEAD_DIM)[None, :]
    place = head[:, None] * HEAD_DIM + dim[None, :]
    heads = tl.load(heads_ptr + place, mask=is_element, other=0.0)
    if IS_FP8:
        exact = heads.to(tl.float32)
        exponent = exponent_for(tl.max(tl.abs(exact), 1))
        tl.store(exponents_ptr + cell_exponent + head, exponent.to(tl.uint8), mask=is_head)
        heads = exact * inverse_scale_of(exponent)[:, None]
    tl.store(cache_ptr + cell + place, heads.to(cache_ptr.dtype.element_ty), mask=is_element)


@triton.jit(do_not_specialize_on_alignment=["slot_mapping_ptr"])
@no_type_check
def _reshape_and_cache_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    key_exponents_ptr,
    value_exponents_ptr,
    slot_mapping_ptr,
    key_stride_token,
    value_stride_token,
    cache_stride_block,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_FP8: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program: one token, all its heads."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    head, dim = tl.arange(0, BLOCK_HEADS), tl.arange(0, BLOCK_D)
    is_head = head < NUM_KV_HEADS
    block = slot // BLOCK_SIZE * cache_stride_block
    cell = block + slot % BLOCK_SIZE * (NUM_KV_HEADS * HEAD_DIM)
    cell_exponent = block + slot % BLOCK_SIZE * NUM_KV_HEADS
    _write_heads(
        key_ptr + token * key_stride_token, key_cache_ptr, key_exponents_ptr, cell, cell_exponent,
        head, dim, is_head, HEAD_DIM, IS_FP8,
    )  # fmt: skip
    _write_heads(
        value_ptr + token * value_stride_token, value_cache_ptr, value_exponents_ptr, cell, cell_exponent,
        head, dim, is_head, HEAD_DIM, IS_FP8,
    )  # fmt: skip


def reshape_and_cache_triton(
    key: Tensor, value: Tensor, key_cache: Cache, value_cache: Cache, slots: CacheSlots
) -> None:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_tokens, num_kv_heads, head_dim = key.shape
    keys, values = elements_of(key_cache), elements_of(value_cache)
    assert key.stride()[1:] == value.stride()[1:] == (head_dim, 1) and key.shape == value.shape
    assert keys.shape == values.shape and keys.stride() == values.stride()
    for cache in (key_cache, value_cache):
        check_cache(cache, slots.block_size, num_kv_heads, head_dim)
    assert slots.slot_mapping.shape == (num_tokens,) and slots.slot_mapping.is_contiguous()
    if num_tokens == 0:
        return
    block_heads, block_d = triton.next_power_of_2(num_kv_heads), triton.next_power_of_2(head_dim)
    _reshape_and_cache_kernel[(num_tokens,)](
        key,
        value,
        keys,
        values,
        exponents_of(key_cache),
        exponents_of(value_cache),
        slots.slot_mapping,
        key.stride(0),
        value.stride(0),
        keys.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=slots.block_size,
        IS_FP8=not isinstance(key_cache, Tensor),
        BLOCK_HEADS=block_heads,
        BLOCK_D=block_d,
        num_warps=min(8, max(1, block_heads * block_d // 256)),
    )


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Cache, value_cache: Cache, slots: CacheSlots) -> None:
    if not key.is_cuda:  # no checks: torch makes its own, and on a CPU they would take time of the step
        return reshape_and_cache_reference(key, value, key_cache, value_cache, slots)
    return reshape_and_cache_triton(key, value, key_cache, value_cache, slots)
