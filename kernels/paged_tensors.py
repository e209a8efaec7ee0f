"""What the kernels of paged attention rely on in their tensors, decode's and prefill's alike."""

from __future__ import annotations

from torch import Tensor

_MAX_HEAD_DIM = 256


def check_paged_tensors(query: Tensor, key_cache: Tensor, value_cache: Tensor, block_size: int, out: Tensor) -> None:
    """AssertionError unless they are as the contracts of kernels/paged_attention_*.py have them.

    The caches' rows of head_dim elements are numbered in 32 bits, so there must be fewer than 2^31 of them.
    """
    _, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    assert query.stride()[1:] == (head_dim, 1) and out.is_contiguous() and out.shape == query.shape
    assert num_heads % num_kv_heads == 0 and head_dim <= _MAX_HEAD_DIM
    assert query.dtype == key_cache.dtype == value_cache.dtype == out.dtype
    assert key_cache.shape[1:] == (block_size, num_kv_heads, head_dim)
    assert key_cache.shape == value_cache.shape and key_cache.stride() == value_cache.stride()
    assert key_cache.stride()[1:] == (num_kv_heads * head_dim, head_dim, 1)
    assert key_cache.stride(0) % head_dim == 0 and key_cache.shape[0] * key_cache.stride(0) < head_dim * 2**31
