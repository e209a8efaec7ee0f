"""Against torch's own multi-head attention, fp32 on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels.paged_attention_prefill import prefill_batch
from kernels.reshape_and_cache import cache_slots
from service.layers.attention import AttentionInputs, LayerCache
from service.models.model_config import load_model_config
from service.models.multi_head_attention import MultiHeadAttention
from tests.models.checkpoints import gpt2

NUM_TOKENS, BLOCK_SIZE = 20, 4


@pytest.mark.parametrize("parts", [1, 3])
def test_it_is_causal_attention_however_its_matrices_are_stored(parts: int, tmp_path):
    config = load_model_config(gpt2(tmp_path))
    size, num_heads = config.hidden_size, config.num_heads
    ours = MultiHeadAttention(config, *[3 * size // parts] * parts)
    theirs = nn.MultiheadAttention(size, num_heads, batch_first=True)
    weights = (theirs.in_proj_weight, theirs.in_proj_bias, theirs.out_proj.weight, theirs.out_proj.bias)
    parameters = (ours.qkv.weight, ours.qkv.bias, ours.output.weight, ours.output.bias)
    for mine, weight in zip(parameters, weights, strict=True):
        mine.data.copy_(weight.data.normal_(std=0.2))

    num_blocks = NUM_TOKENS // BLOCK_SIZE
    cache = LayerCache(*(torch.zeros(num_blocks, BLOCK_SIZE, num_heads, size // num_heads) for _ in range(2)))
    starts, lens = (torch.tensor(values, dtype=torch.int32) for values in ([0, NUM_TOKENS], [NUM_TOKENS]))
    table = torch.arange(num_blocks, dtype=torch.int32)[None]
    batch = prefill_batch(table, starts, lens, NUM_TOKENS, BLOCK_SIZE)
    inputs = AttentionInputs(cache_slots(torch.arange(NUM_TOKENS), BLOCK_SIZE), None, batch)
    x = torch.randn(NUM_TOKENS, size)
    with torch.inference_mode():
        want, _ = theirs(x[None], x[None], x[None], attn_mask=torch.ones(NUM_TOKENS, NUM_TOKENS).triu(1).bool())
        torch.testing.assert_close(ours(x, cache, inputs), want[0], atol=1e-4, rtol=1e-4)
