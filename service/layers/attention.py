"""Self-attention of one layer over the paged KV cache, and the facts about the batch that it needs.

All that is not a dense operation per token happens here (ORCA section 4.2: selective batching): each sequence of the
flat batch attends to its own blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.paged_attention_decode import DecodeBatch, paged_attention_decode
from kernels.paged_attention_prefill import PrefillBatch, paged_attention_prefill
from kernels.reshape_and_cache import CacheSlots


class LayerCache(NamedTuple):
    """One layer's keys and values, views of the storage: [num_blocks, block_size, num_kv_heads, head_dim]."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """The borders of a flat batch of T tokens, made once a step for all layers.

    slots: where each token's key and value go. decode: of the first rows, sequences of one token each. prefill: of the
    rows that its `query_starts` name. None where there are no such rows. Rows of `decode` that are padding may be
    rows of `prefill`: those of `decode` are written first.
    """

    slots: CacheSlots
    decode: DecodeBatch | None
    prefill: PrefillBatch | None

    def afresh(self) -> AttentionInputs:
        """For a step whose lengths and slots are others, at the same places: nothing is known of them yet."""
        decode = None if self.decode is None else self.decode.afresh()
        prefill = None if self.prefill is None else replace(self.prefill)
        return AttentionInputs(replace(self.slots), decode, prefill)


def paged_attention(
    query: Tensor, cache: LayerCache, inputs: AttentionInputs, scale: float, sliding_window: int | None = None
) -> Tensor:
    """query [T, num_heads, head_dim], keys and values already in the cache -> [T, num_heads * head_dim].

    sliding_window: how many tokens a query sees, its own included; None: all. The blocks of tokens that no query sees
    any more stay with their sequence. Decodes and prompts are two launches: their best kernels differ.
    """
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if inputs.decode is not None:
        end = inputs.decode.context_lens.shape[0]
        paged_attention_decode(query[:end], *cache, inputs.decode, scale, out[:end], sliding_window)
    if inputs.prefill is not None:
        paged_attention_prefill(query, *cache, inputs.prefill, scale, out, sliding_window)
    return out.flatten(1)
