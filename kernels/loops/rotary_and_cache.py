"""kernels/rotary_and_cache.py as a compiled loop: a token's heads are read once, for norm, rotation and cache."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from numba import njit
from torch import Tensor

from kernels.loops.bf16 import bf16_at, count_up, float32_at, float_from_bits, int64_at, narrow, widen
from kernels.loops.team import Loop, float_bits

_FEW_TOKENS = 32


@njit(inline="always")
@no_type_check
def _normalise(head, weight, eps):
    squares = np.float32(0)
    for i in range(head.size):
        squares += widen(head[i]) * widen(head[i])
    scale = np.float32(1) / np.sqrt(squares / np.float32(head.size) + eps)
    for i in range(head.size):
        head[i] = narrow(widen(head[i]) * scale * widen(weight[i]))


@njit(inline="always")
@no_type_check
def _turn(first, second, cos, sin):
    """first, second: the halves of a head's rotated dims. cos, sin: the second halves of the
    tables (c, c) and (-s, s)."""
    for i in range(first.size):
        x, y = widen(first[i]), widen(second[i])
        first[i] = narrow(x * cos[i] - y * sin[i])
        second[i] = narrow(y * cos[i] + x * sin[i])


@Loop
@no_type_check
def _rotary_and_cache(arguments):
    """Item: one token."""
    a = int64_at(arguments, 18)
    num_tokens, qkv_address, token_stride, rotary_dim = a[1], a[2], a[3], a[6]
    block_stride, block_size, num_heads, num_kv_heads, head_dim = a[9], a[11], a[12], a[13], a[14]
    eps = float_from_bits(np.int32(a[17]))
    slots = int64_at(a[10], num_tokens)
    query_weight, key_weight = bf16_at(a[15], head_dim), bf16_at(a[16], head_dim)
    half, kv_size = rotary_dim // 2, num_kv_heads * head_dim
    token = count_up(arguments)
    while token < num_tokens:
        token_address = qkv_address + 2 * token * token_stride
        cos = float32_at(a[4] + 4 * (token * rotary_dim + half), half)
        sin = float32_at(a[5] + 4 * (token * rotary_dim + half), half)
        for h in range(num_heads + num_kv_heads):
            address = token_address + 2 * h * head_dim
            if a[15] != 0:
                if h < num_heads:
                    _normalise(bf16_at(address, head_dim), query_weight, eps)
                else:
                    _normalise(bf16_at(address, head_dim), key_weight, eps)
            _turn(bf16_at(address, half), bf16_at(address + 2 * half, half), cos, sin)
        slot = slots[token]
        if slot >= 0:
            cell = 2 * (slot // block_size * block_stride + slot % block_size * kv_size)
            key_cell, value_cell = bf16_at(a[7] + cell, kv_size), bf16_at(a[8] + cell, kv_size)
            key = bf16_at(token_address + 2 * num_heads * head_dim, kv_size)
            value = bf16_at(token_address + 2 * (num_heads * head_dim + kv_size), kv_size)
            for i in range(kv_size):
                key_cell[i] = key[i]
                value_cell[i] = value[i]
        token = count_up(arguments)


def rotary_and_cache(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    eps: float,
) -> None:
    """qkv and both caches bf16; slot_mapping: of `CacheSlots`, contiguous."""
    num_tokens, num_all_heads, head_dim = qkv.shape
    num_kv_heads = key_cache.shape[2]
    assert qkv.stride()[1:] == (head_dim, 1) and cos.is_contiguous() and sin.is_contiguous()
    assert cos.dtype is sin.dtype is torch.float32 and cos.shape == sin.shape == (num_tokens, cos.shape[1])
    assert key_cache.stride() == value_cache.stride() and key_cache.dtype is value_cache.dtype is torch.bfloat16
    assert key_cache.stride()[1:] == (num_kv_heads * head_dim, head_dim, 1)
    assert slot_mapping.is_contiguous() and slot_mapping.shape == (num_tokens,)
    _rotary_and_cache(
        num_tokens > _FEW_TOKENS,
        num_tokens,
        qkv.data_ptr(),
        qkv.stride(0),
        cos.data_ptr(),
        sin.data_ptr(),
        cos.shape[1],
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        key_cache.stride(0),
        slot_mapping.data_ptr(),
        key_cache.shape[1],
        num_all_heads - 2 * num_kv_heads,
        num_kv_heads,
        head_dim,
        0 if query_weight is None else query_weight.data_ptr(),
        0 if key_weight is None else key_weight.data_ptr(),
        float_bits(eps),
    )
