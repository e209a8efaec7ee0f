"""What the attention loops require of queries and of cached keys and values, which they read by address."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.loops.vector_code import LANES


def takes_head_dim(head_dim: int) -> bool:
    """Whether the loops support heads of this size: whole vectors of bf16."""
    return head_dim % (2 * LANES) == 0


def check_heads(query: Tensor, key_cache: Tensor, value_cache: Tensor, out: Tensor) -> None:
    """Tensors as in kernels/paged_attention_decode.py. All are bf16, heads are adjacent, and `out` is contiguous; rows
    of the query and blocks may be strided."""
    num_kv_heads, head_dim = key_cache.shape[2:]
    assert takes_head_dim(head_dim) and query.stride()[1:] == (head_dim, 1) and out.is_contiguous()
    assert query.dtype is key_cache.dtype is value_cache.dtype is out.dtype is torch.bfloat16
    assert key_cache.stride() == value_cache.stride() and out.shape == query.shape
    assert key_cache.stride()[1:] == (num_kv_heads * head_dim, head_dim, 1)
