"""What the paged attention kernels, decode and prefill, rely on in their tensors."""

from __future__ import annotations

from torch import Tensor

from kernels.fp8_cache import Cache, Fp8Cache, check_cache, elements_of

_MAX_HEAD_DIM = 256


def check_paged_tensors(query: Tensor, key_cache: Cache, value_cache: Cache, block_size: int, out: Tensor) -> None:
    """Raises AssertionError unless the tensors are as the contracts of kernels/paged_attention_*.py say.

    Rows of head_dim elements in the caches are numbered in 32 bits, so there must be fewer than 2^31 of them.
    """
    _, num_heads, head_dim = query.shape
    keys, values = elements_of(key_cache), elements_of(value_cache)
    num_kv_heads = keys.shape[2]
    assert query.stride()[1:] == (head_dim, 1) and out.is_contiguous() and out.shape == query.shape
    assert num_heads % num_kv_heads == 0 and head_dim <= _MAX_HEAD_DIM
    assert query.dtype == out.dtype and keys.dtype == values.dtype
    assert keys.dtype == query.dtype or isinstance(key_cache, Fp8Cache)
    for cache in (key_cache, value_cache):
        check_cache(cache, block_size, num_kv_heads, head_dim)
    assert keys.shape == values.shape and keys.stride() == values.stride()
    assert keys.stride(0) % head_dim == 0 and keys.shape[0] * keys.stride(0) < head_dim * 2**31
