"""Self-attention of one layer over the paged KV cache, and the facts about the batch that it needs.

Everything that is not a dense operation per token happens here (ORCA section 4.2: selective batching): the flat
tokens' keys and values are written, then each sequence attends to its own blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kernels.paged_attention_decode import paged_attention_decode
from kernels.paged_attention_prefill import paged_attention_prefill
from kernels.reshape_and_cache import reshape_and_cache


class LayerCache(NamedTuple):
    """One layer's keys and values, views of the storage: [num_blocks, block_size, num_kv_heads, head_dim]."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Sequences that compute one token each. block_table [S, M] int32, context_lens [S] int32."""

    block_table: Tensor
    context_lens: Tensor


@dataclass(frozen=True, slots=True)
class PrefillInputs:
    """Sequences that compute several tokens: block_table [S, M] int32, query_starts [S + 1] int32 counted from the
    first prefill token, context_lens [S] int32, max_query_len a bound on the tokens of one."""

    block_table: Tensor
    query_starts: Tensor
    context_lens: Tensor
    max_query_len: int


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """The borders of a flat batch: `num_decode_tokens` rows that decode come first, rows of prompts follow.

    slot_mapping [T] int64: where each token's key and value go; -1 for padding.
    """

    slot_mapping: Tensor
    num_decode_tokens: int
    decode: DecodeInputs | None
    prefill: PrefillInputs | None


class PagedAttention(nn.Module):
    """query [T, num_heads, head_dim], key and value [T, num_kv_heads, head_dim] -> [T, num_heads * head_dim]."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.scale = head_dim**-0.5

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cache: LayerCache, inputs: AttentionInputs) -> Tensor:
        keys, values = cache
        reshape_and_cache(key, value, keys, values, inputs.slot_mapping)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        border = inputs.num_decode_tokens
        if inputs.decode is not None:
            rows = inputs.decode
            paged_attention_decode(
                query[:border], keys, values, rows.block_table, rows.context_lens, self.scale, out[:border]
            )
        if inputs.prefill is not None:
            rows_of = inputs.prefill
            paged_attention_prefill(
                query[border:],
                keys,
                values,
                rows_of.block_table,
                rows_of.query_starts,
                rows_of.context_lens,
                rows_of.max_query_len,
                self.scale,
                out[border:],
            )
        return out.flatten(1)
