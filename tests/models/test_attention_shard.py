from __future__ import annotations

import pytest
import torch

from service.layers.linear import Linear
from service.models.attention_shard import shard_attention
from tests.layers.test_shard import ranks

HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 4, 2, 3, 10
SIZES = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]


@pytest.mark.parametrize("parts", [SIZES, [sum(SIZES)]], ids=["three tensors", "one"])
@pytest.mark.parametrize("size", [2, 4])
def test_each_rank_reads_the_rows_of_its_heads(parts, size):
    """Whichever way the checkpoint has them; with more ranks than kv heads these are read by several."""
    weight = torch.randn(sum(SIZES), HIDDEN)
    stored = dict(zip([f"p{i}.weight" for i in range(len(parts))], weight.split(parts), strict=True))
    query, key, value = weight.view(-1, HEAD_DIM, HIDDEN).split([HEADS, KV_HEADS, KV_HEADS])
    for rank in ranks(size):
        qkv, output = Linear(HIDDEN, *parts), Linear(SIZES[0], HIDDEN)
        num_heads = shard_attention(qkv, output, HEADS, KV_HEADS, HEAD_DIM, rank)
        names = [f"p{i}" for i in range(len(parts))]
        shards = qkv.checkpoint_shards(*names)
        for name, part in qkv.checkpoint_tensors(*names).items():
            part.copy_(shards[name].of(stored[name]))
        own = rank.rank * num_heads
        kv = slice(own * KV_HEADS // HEADS, own * KV_HEADS // HEADS + max(1, KV_HEADS // size))
        want = torch.cat((query[own : own + num_heads], key[kv], value[kv]))
        assert torch.equal(qkv.weight.view(-1, HEAD_DIM, HIDDEN), want)
        assert sum(qkv.out_features) == len(qkv.weight)
        assert qkv.shape_name == f"{len(qkv.weight)}x{HIDDEN}"
        assert output.in_features == num_heads * HEAD_DIM
        (shard,) = output.checkpoint_shards("o").values()
        assert (shard.dim, shard.ranges) == (1, (range(own * HEAD_DIM, (own + num_heads) * HEAD_DIM),))
