"""All operations between the packed QKV projection and attention, in one launch: norm of the query and key heads
(Qwen3), rotary embedding, and writing keys and values to the paged cache.

    heads 0 .. H + K of every token:     head = rms_norm(head, its weight)          if there are weights
                                         head = rotary_embedding(head, cos, sin)    in place
    tokens with slot_mapping[t] >= 0:    reshape_and_cache(key heads, value heads)

Each step is the op of that name (kernels/rms_norm.py, rotary_embedding.py, reshape_and_cache.py), including its
rounding: normed heads are rounded to qkv's dtype before they are rotated, rotated keys before they are cached.

Tensors (T tokens, H query heads, K kv heads, D head dim, R <= D rotated dims, B blocks, P block size):
    qkv                      [T, H + 2 * K, D]  bf16 or fp32; last two dims contiguous, rows strided. Query, key, then
                                                value heads. Query and key heads are written in place, for all tokens.
    cos, sin                 [T, R]             fp32, contiguous: (c, c) and (-s, s)
    key_cache, value_cache   [B, P, K, D]       one layer's view: last three dims contiguous, blocks strided. Written in
                                                place; cells of other slots are not touched. Or both fp8 with
                                                exponents (kernels/fp8_cache.py)
    slots                                       from `cache_slots` (kernels/reshape_and_cache.py); -1 skips the write
    query_weight, key_weight [D]                qkv's dtype, contiguous; both or neither

K follows from the cache, H from qkv. Offsets are int64. T may be 0. Not differentiable (the cache is storage).
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.cpu_loops import loops_for
from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.fp8_cache import Cache, check_cache, elements_of, exponent_for, exponents_of, inverse_scale_of
from kernels.optional_triton import tl, triton
from kernels.reshape_and_cache import CacheSlots, reshape_and_cache_reference
from kernels.rms_norm import rms_norm_reference
from kernels.rotary_embedding import rotary_embedding_reference

_HEADS = 8  # heads per program; 1024 elements with head dim 128


def rotary_and_cache_reference(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Cache,
    value_cache: Cache,
    slots: CacheSlots,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    num_kv_heads = elements_of(key_cache).shape[2]
    first_value = qkv.shape[1] - num_kv_heads
    first_key = first_value - num_kv_heads
    if query_weight is not None and key_weight is not None:
        qkv[:, :first_key] = rms_norm_reference(qkv[:, :first_key], query_weight, eps)
        qkv[:, first_key:first_value] = rms_norm_reference(qkv[:, first_key:first_value], key_weight, eps)
    rotary_embedding_reference(qkv[:, :first_value], cos, sin)
    reshape_and_cache_reference(qkv[:, first_key:first_value], qkv[:, first_value:], key_cache, value_cache, slots)


@triton.jit(do_not_specialize_on_alignment=["slot_mapping_ptr"])
@no_type_check
def _rotary_and_cache_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    key_cache_ptr,
    value_cache_ptr,
    key_exponents_ptr,
    value_exponents_ptr,
    slot_mapping_ptr,
    query_weight_ptr,
    key_weight_ptr,
    eps,
    qkv_stride_token,
    cache_stride_block,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_FP8: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (token, some heads). A head is read in three parts: both rotated halves, and the dims that are not
    rotated."""
    wait_for_inputs(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    is_query = head < NUM_HEADS
    is_value = head >= NUM_HEADS + NUM_KV_HEADS
    is_head = head < NUM_HEADS + 2 * NUM_KV_HEADS
    is_key = (is_query == 0) & (is_value == 0)
    dim = tl.arange(0, BLOCK_HALF)
    is_dim = dim < HALF
    is_pair = is_head[:, None] & is_dim[None, :]

    first_ptr = qkv_ptr + token * qkv_stride_token + head[:, None] * HEAD_DIM + dim[None, :]
    first_raw = tl.load(first_ptr, mask=is_pair, other=0.0)
    second_raw = tl.load(first_ptr + HALF, mask=is_pair, other=0.0)
    first, second = first_raw.to(tl.float32), second_raw.to(tl.float32)
    dtype = qkv_ptr.dtype.element_ty
    if BLOCK_REST > 0:
        rest_dim = 2 * HALF + tl.arange(0, BLOCK_REST)
        is_rest = is_head[:, None] & (rest_dim < HEAD_DIM)[None, :]
        rest_ptr = qkv_ptr + token * qkv_stride_token + head[:, None] * HEAD_DIM + rest_dim[None, :]
        rest = tl.load(rest_ptr, mask=is_rest, other=0.0)

    if HAS_NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        if BLOCK_REST > 0:
            exact = rest.to(tl.float32)
            squares += tl.sum(exact * exact, 1)
        scale = (1 / tl.sqrt(squares / HEAD_DIM + eps))[:, None]
        query_weight = tl.load(query_weight_ptr + dim, mask=is_dim, other=0.0).to(tl.float32)[None, :]
        key_weight = tl.load(key_weight_ptr + dim, mask=is_dim, other=0.0).to(tl.float32)[None, :]
        weight = tl.where(is_query[:, None], query_weight, key_weight)
        first = (first * scale * weight).to(dtype).to(tl.float32)
        query_weight = tl.load(query_weight_ptr + HALF + dim, mask=is_dim, other=0.0).to(tl.float32)[None, :]
        key_weight = tl.load(key_weight_ptr + HALF + dim, mask=is_dim, other=0.0).to(tl.float32)[None, :]
        weight = tl.where(is_query[:, None], query_weight, key_weight)
        second = (second * scale * weight).to(dtype).to(tl.float32)
        if BLOCK_REST > 0:
            query_weight = tl.load(query_weight_ptr + rest_dim, mask=rest_dim < HEAD_DIM, other=0.0)[None, :]
            key_weight = tl.load(key_weight_ptr + rest_dim, mask=rest_dim < HEAD_DIM, other=0.0)[None, :]
            weight = tl.where(is_query[:, None], query_weight, key_weight).to(tl.float32)
            rest = tl.where(is_value[:, None], rest, (exact * scale * weight).to(dtype))

    table = token * (2 * HALF) + dim
    cos_first = tl.load(cos_ptr + table, mask=is_dim, other=0.0)[None, :]
    sin_first = tl.load(sin_ptr + table, mask=is_dim, other=0.0)[None, :]
    cos_second = tl.load(cos_ptr + table + HALF, mask=is_dim, other=0.0)[None, :]
    sin_second = tl.load(sin_ptr + table + HALF, mask=is_dim, other=0.0)[None, :]
    turned_first = (first * cos_first + second * sin_first).to(dtype)
    turned_second = (second * cos_second + first * sin_second).to(dtype)
    is_turned = is_pair & (is_value == 0)[:, None]
    tl.store(first_ptr, turned_first, mask=is_turned)
    tl.store(first_ptr + HALF, turned_second, mask=is_turned)
    if HAS_NORM and BLOCK_REST > 0:
        tl.store(rest_ptr, rest, mask=is_rest & (is_value == 0)[:, None])

    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    cell = slot // BLOCK_SIZE * cache_stride_block + slot % BLOCK_SIZE * (NUM_KV_HEADS * HEAD_DIM)
    cache_dtype = key_cache_ptr.dtype.element_ty
    if IS_FP8:
        # One scale for all parts of a head; keys as they were rounded after rotation.
        is_value_head = is_value[:, None]
        first = tl.where(is_value_head, first_raw, turned_first).to(tl.float32)
        second = tl.where(is_value_head, second_raw, turned_second).to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        if BLOCK_REST > 0:
            rest = rest.to(tl.float32)
            largest = tl.maximum(largest, tl.max(tl.abs(rest), 1))
        exponent = exponent_for(largest)
        inverse = inverse_scale_of(exponent)[:, None]
        turned_first, turned_second = first * inverse, second * inverse
        first_raw, second_raw = turned_first, turned_second
        if BLOCK_REST > 0:
            rest *= inverse
        exponent_cell = slot // BLOCK_SIZE * cache_stride_block + slot % BLOCK_SIZE * NUM_KV_HEADS + head - NUM_HEADS
        exponent = exponent.to(tl.uint8)
        tl.store(key_exponents_ptr + exponent_cell, exponent, mask=is_head & is_key)
        tl.store(value_exponents_ptr + exponent_cell - NUM_KV_HEADS, exponent, mask=is_head & is_value)
    key_ptr = key_cache_ptr + cell + (head - NUM_HEADS)[:, None] * HEAD_DIM
    value_ptr = value_cache_ptr + cell + (head - NUM_HEADS - NUM_KV_HEADS)[:, None] * HEAD_DIM
    is_cached_key = is_pair & is_key[:, None]
    is_cached_value = is_pair & is_value[:, None]
    tl.store(key_ptr + dim[None, :], turned_first.to(cache_dtype), mask=is_cached_key)
    tl.store(key_ptr + HALF + dim[None, :], turned_second.to(cache_dtype), mask=is_cached_key)
    tl.store(value_ptr + dim[None, :], first_raw.to(cache_dtype), mask=is_cached_value)
    tl.store(value_ptr + HALF + dim[None, :], second_raw.to(cache_dtype), mask=is_cached_value)
    if BLOCK_REST > 0:
        tl.store(key_ptr + rest_dim[None, :], rest.to(cache_dtype), mask=is_rest & is_key[:, None])
        tl.store(value_ptr + rest_dim[None, :], rest.to(cache_dtype), mask=is_rest & is_value[:, None])


def rotary_and_cache_triton(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Cache,
    value_cache: Cache,
    slots: CacheSlots,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_tokens, num_all_heads, head_dim = qkv.shape
    keys, values = elements_of(key_cache), elements_of(value_cache)
    num_kv_heads, rotary_dim = keys.shape[2], cos.shape[-1]
    num_heads = num_all_heads - 2 * num_kv_heads
    assert qkv.stride()[1:] == (head_dim, 1) and num_heads > 0
    assert cos.shape == sin.shape == (num_tokens, rotary_dim) and rotary_dim % 2 == 0 and rotary_dim <= head_dim
    assert cos.dtype == sin.dtype == torch.float32 and cos.is_contiguous() and sin.is_contiguous()
    assert keys.shape == values.shape and keys.stride() == values.stride() and keys.dtype == values.dtype
    for cache in (key_cache, value_cache):
        check_cache(cache, slots.block_size, num_kv_heads, head_dim)
    assert slots.slot_mapping.shape == (num_tokens,) and slots.slot_mapping.is_contiguous()
    assert (query_weight is None) == (key_weight is None)
    for weight in (query_weight, key_weight):
        assert weight is None or (weight.shape == (head_dim,) and weight.is_contiguous() and weight.dtype == qkv.dtype)
    if num_tokens == 0:
        return
    rest = head_dim - rotary_dim
    _rotary_and_cache_kernel[(num_tokens, triton.cdiv(num_all_heads, _HEADS))](
        qkv,
        cos,
        sin,
        keys,
        values,
        exponents_of(key_cache),
        exponents_of(value_cache),
        slots.slot_mapping,
        qkv if query_weight is None else query_weight,
        qkv if key_weight is None else key_weight,
        eps,
        qkv.stride(0),
        keys.stride(0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        HALF=rotary_dim // 2,
        BLOCK_SIZE=slots.block_size,
        HAS_NORM=query_weight is not None,
        IS_FP8=not isinstance(key_cache, Tensor),
        BLOCK_HEADS=_HEADS,
        BLOCK_HALF=triton.next_power_of_2(rotary_dim // 2),
        BLOCK_REST=triton.next_power_of_2(rest) if rest else 0,
        num_warps=4,
        **dependent_launch(qkv.device),
    )


def rotary_and_cache(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Cache,
    value_cache: Cache,
    slots: CacheSlots,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    loops = loops_for(qkv) if elements_of(key_cache).dtype is qkv.dtype else None
    if loops is not None:
        mapping = slots.slot_mapping
        loops.rotary_and_cache(qkv, cos, sin, key_cache, value_cache, mapping, query_weight, key_weight, eps)
        return
    run = rotary_and_cache_triton if qkv.is_cuda else rotary_and_cache_reference
    run(qkv, cos, sin, key_cache, value_cache, slots, query_weight, key_weight, eps)
