"""FP8 keys and values: each head of each token has a power of two as its scale.

    value[d] = 2^(exponent - 127) * element[d]

exponent is the smallest one >= 1 with which the head's largest |element| is at most 448, e4m3's maximum. It is 255 (not
a number) for a head that holds infinity or NaN (E8M0 of the OCP's microscaling formats, 2023). So there is no
calibration, what one token wrote never depends on another token, and a head takes D + 1 bytes instead of bf16's 2 D.

Multiplying by a power of two is exact: a value is within 1/16 of what was written, or within 2^-17 of the head's
largest if that is more; it fits bf16, and a kernel may apply the factor to scores or weights instead. Only the rounding
of the elements is lost.

Tensors (B blocks, P block size, K kv heads, D head dim), one layer's views of the storage:
    elements   [B, P, K, D]  float8_e4m3fn; last three dims contiguous, blocks strided
    exponents  [B, P, K]     uint8; last two dims contiguous, with the same byte stride between blocks as the elements
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

FP8 = torch.float8_e4m3fn
_NOT_FINITE = 255


class Fp8Cache(NamedTuple):
    """The keys, or the values."""

    elements: Tensor
    exponents: Tensor


Cache = Tensor | Fp8Cache
"""One layer's keys or values, [B, P, K, D]: read by attention kernels, written by those before them."""


def elements_of(cache: Cache) -> Tensor:
    """[B, P, K, D], whatever its dtype."""
    return cache if isinstance(cache, Tensor) else cache.elements


def exponents_of(cache: Cache) -> Tensor:
    """The kernel argument for the exponents; for a plain cache a tensor that is not read."""
    return cache if isinstance(cache, Tensor) else cache.exponents


def check_cache(cache: Cache, block_size: int, num_kv_heads: int, head_dim: int) -> None:
    """Raises AssertionError unless the cache is as this file's contract says."""
    elements = elements_of(cache)
    assert elements.shape[1:] == (block_size, num_kv_heads, head_dim)
    assert elements.stride()[1:] == (num_kv_heads * head_dim, head_dim, 1)
    if isinstance(cache, Fp8Cache):
        assert elements.dtype == FP8 and cache.exponents.dtype == torch.uint8
        assert cache.exponents.shape == elements.shape[:-1] and cache.exponents.stride() == (
            elements.stride(0),
            num_kv_heads,
            1,
        )


def to_fp8(heads: Tensor) -> tuple[Tensor, Tensor]:
    """[..., D] -> elements [..., D] e4m3, exponents [...] uint8."""
    exact = heads.float()
    bits = exact.abs().amax(-1).view(torch.int32)
    exponents = (((bits + 0x1FFFFF) >> 23) - 8).clamp_(min=1)  # 448 = 1.75 * 2^8; 0x1FFFFF carries above 1.75
    exponents = torch.where(bits >= 0x7F800000, _NOT_FINITE, exponents)
    inverse = ((254 - exponents).clamp_(min=0) << 23).view(torch.float32)
    return (exact * inverse[..., None]).to(FP8), exponents.to(torch.uint8)


def from_fp8(elements: Tensor, exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `to_fp8`: [..., D], exact in bf16 and fp32."""
    scales = (exponents.int() << 23).view(torch.float32)
    if elements.device.type == "cpu" and dtype is not torch.float16:
        return _looked_up(elements, dtype) * scales.to(dtype)[..., None]
    return (elements.float() * scales[..., None]).to(dtype)


def _looked_up(elements: Tensor, dtype: torch.dtype) -> Tensor:
    """elements.to(dtype), five times as fast as torch on a CPU, which converts them one by one."""
    numbers = elements.view(torch.uint8).flatten().int()
    return _numbers(dtype).index_select(0, numbers).view(elements.shape)


@cache
def _numbers(dtype: torch.dtype) -> Tensor:
    """The values of all 256 bit patterns."""
    return torch.arange(256, dtype=torch.uint8).view(FP8).to(dtype)


def write_cells(cache: Cache, cells: tuple[Tensor, Tensor], heads: Tensor) -> None:
    """Write heads [N, K, D] to the cells given by blocks and offsets [N]."""
    if isinstance(cache, Tensor):
        cache.index_put_(cells, heads.to(cache.dtype))
        return
    elements, exponents = to_fp8(heads)
    cache.elements.view(torch.uint8).index_put_(cells, elements.view(torch.uint8))
    cache.exponents.index_put_(cells, exponents)


def read_blocks(cache: Cache, block_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """[N, P, K, D] of `dtype`, which must be a plain cache's own."""
    if isinstance(cache, Tensor):
        return cache.index_select(0, block_ids)
    elements = cache.elements.view(torch.uint8).index_select(0, block_ids).view(FP8)
    return from_fp8(elements, cache.exponents.index_select(0, block_ids), dtype)


@triton.jit
@no_type_check
def scale_of(exponent):
    """uint8 -> fp32: 2^(exponent - 127), infinity for 255."""
    return (exponent.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def exponent_for(largest):
    """fp32, not negative -> int32: the exponent of `to_fp8` for a head with this largest value."""
    bits = largest.to(tl.int32, bitcast=True)
    exponent = tl.maximum(((bits + 0x1FFFFF) >> 23) - 8, 1)
    return tl.where(bits >= 0x7F800000, 255, exponent)


@triton.jit
@no_type_check
def inverse_scale_of(exponent):
    """int32 -> fp32: 1 / `scale_of`, zero for 255."""
    return (tl.maximum(254 - exponent, 0) << 23).to(tl.float32, bitcast=True)
