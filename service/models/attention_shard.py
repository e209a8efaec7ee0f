"""Attention's projections, divided by heads."""

from __future__ import annotations

from service.layers.linear import Linear
from service.layers.shard import even_share, kv_head_share
from service.layers.tensor_parallel import TensorParallel


def shard_attention(
    qkv: Linear, output: Linear, num_heads: int, num_kv_heads: int, head_dim: int, parallel: TensorParallel
) -> int:
    """Keep only this rank's heads: `qkv` has all query heads, then all key heads, then all value heads; `output` takes
    the query heads. Returns the number of query heads kept."""
    queries, kv = even_share(num_heads, parallel), kv_head_share(num_kv_heads, parallel)
    first_value = num_heads + num_kv_heads
    keys, values = (range(first + kv.start, first + kv.stop) for first in (num_heads, first_value))
    qkv.shard_outputs(*(range(heads.start * head_dim, heads.stop * head_dim) for heads in (queries, keys, values)))
    output.shard_inputs(range(queries.start * head_dim, queries.stop * head_dim), parallel)
    return len(queries)
