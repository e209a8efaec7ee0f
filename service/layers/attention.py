"""Self-attention of one layer over the paged KV cache, and the facts about the batch that it needs.

Everything that is not a dense operation per token happens here (ORCA section 4.2: selective batching): the flat
tokens' keys and values are written, then each sequence attends to its own blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kernels.paged_attention_decode import DecodeBatch, paged_attention_decode
from kernels.paged_attention_prefill import PrefillBatch, paged_attention_prefill
from kernels.reshape_and_cache import CacheSlots, reshape_and_cache


class LayerCache(NamedTuple):
    """One layer's keys and values, views of the storage: [num_blocks, block_size, num_kv_heads, head_dim]."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """The borders of a flat batch of T tokens, made once a step for all layers.

    slots: where each token's key and value go. The first `num_decode_tokens` rows belong to `decode`, sequences of
    one token each; the others to `prefill`. None where there are no such rows.
    """

    slots: CacheSlots
    num_decode_tokens: int
    decode: DecodeBatch | None
    prefill: PrefillBatch | None


class PagedAttention(nn.Module):
    """query [T, num_heads, head_dim], key and value [T, num_kv_heads, head_dim] -> [T, num_heads * head_dim]."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.scale = head_dim**-0.5

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cache: LayerCache, inputs: AttentionInputs) -> Tensor:
        keys, values = cache
        reshape_and_cache(key, value, keys, values, inputs.slots)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        border = inputs.num_decode_tokens
        if inputs.decode is not None:
            paged_attention_decode(query[:border], keys, values, inputs.decode, self.scale, out[:border])
        if inputs.prefill is not None:
            paged_attention_prefill(query[border:], keys, values, inputs.prefill, self.scale, out[border:])
        return out.flatten(1)
