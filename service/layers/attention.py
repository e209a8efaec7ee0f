"""Self-attention of one layer over the paged KV cache, and the batch's facts that it needs.

All that is not a dense operation per token happens here (ORCA, section 3: selective batching): each sequence of the
flat batch attends to its own blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.fp8_cache import Cache
from kernels.paged_attention_decode import DecodeBatch, paged_attention_decode
from kernels.paged_attention_prefill import PrefillBatch, paged_attention_prefill
from kernels.reshape_and_cache import CacheSlots
from kernels.spare_rows import empty_with_spare_rows


class LayerCache(NamedTuple):
    """One layer's keys and values, views of the storage: [num_blocks, block_size, num_kv_heads, head_dim]. Both plain
    or both fp8."""

    keys: Cache
    values: Cache


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """The borders of a flat batch of T tokens, made once per step for all layers.

    slots: where each token's key and value go. decode: for the first rows, sequences of one token each. prefill: for
    the rows between its `query_starts`. None if there are no such rows. Padding rows of `decode` may be rows of
    `prefill` too: `decode`'s output is written first, or its padding rows are not written. rows: [N] int64, the only
    tokens whose output is computed; `decode` and `prefill` are then over these N rows. None: all T. last: for the last
    layer, if it differs. others: the inputs of the other groups, if layers have several groups, each with blocks of its
    own.
    group_of: then the group of each layer; 0 is this one's.
    """

    slots: CacheSlots
    decode: DecodeBatch | None
    prefill: PrefillBatch | None
    rows: Tensor | None = None
    last: AttentionInputs | None = None
    others: tuple[AttentionInputs, ...] = ()
    group_of: tuple[int, ...] = ()

    @classmethod
    def by_group(
        cls,
        group_of: tuple[int, ...],
        block_table: Tensor,
        slots: Sequence[Tensor],
        make: Callable[[Tensor, Tensor], AttentionInputs],
    ) -> AttentionInputs:
        """Build the inputs of all groups. block_table: of all groups, side by side in each row. slots: per group. make:
        builds a group's inputs from its block table and slots."""
        if len(slots) == 1:
            return make(block_table, slots[0])
        width = block_table.shape[1] // len(slots)
        tables = (block_table[:, group * width : (group + 1) * width] for group in range(len(slots)))
        return _together([make(*pair) for pair in zip(tables, slots, strict=True)], group_of)

    def read_at(
        self, rows: Tensor, decode: DecodeBatch | None = None, prefill: PrefillBatch | None = None
    ) -> AttentionInputs:
        """The inputs for a step that reads only these rows of the last layer: [N] int64, N > 0. decode or prefill: each
        of these rows as the last token of its context.

        Keys and values of all tokens are cached, but only a prompt's last token goes through the rest of that layer.
        With 32 layers it saves 3 % of a prompt's products. llama.cpp does the same.
        """
        return replace(self, last=AttentionInputs(self.slots, decode, prefill, rows))

    def by_layer(self, num_layers: int) -> Iterator[AttentionInputs]:
        """The inputs of each layer, first to last."""
        *before, end = self.of_all_tokens(num_layers)
        yield from before
        yield end.last or end

    def of_all_tokens(self, num_layers: int) -> Iterator[AttentionInputs]:
        """Like `by_layer`, for a last layer that computes all tokens."""
        if not self.group_of:
            return repeat(self, num_layers)
        assert len(self.group_of) == num_layers
        groups = (self, *self.others)
        return (groups[group] for group in self.group_of)

    def narrow(self, x: Tensor) -> Tensor:
        """x [T, ...] -> [N, ...]: the rows whose output is computed."""
        return x if self.rows is None else x.index_select(0, self.rows)

    def keeping_l1(self) -> AttentionInputs:
        """For a model that `multiplies_in_registers` (service/models/causal_lm.py)."""
        decode = None if self.decode is None else replace(self.decode, keeps_l1=True)
        last = None if self.last is None else self.last.keeping_l1()
        return replace(self, decode=decode, last=last, others=tuple(other.keeping_l1() for other in self.others))

    def afresh(self) -> AttentionInputs:
        """The same tensors, without anything cached from their values: the next step finds other lengths and slots in
        them."""
        slots = replace(self.slots)
        last = None if self.last is None else self.last._afresh_over(slots, None)
        afresh = self._afresh_over(slots, last)
        return _together([afresh, *(other.afresh() for other in self.others)], self.group_of)

    def _afresh_over(self, slots: CacheSlots, last: AttentionInputs | None) -> AttentionInputs:
        decode = None if self.decode is None else self.decode.afresh()
        prefill = None if self.prefill is None else self.prefill.afresh()
        return AttentionInputs(slots, decode, prefill, self.rows, last)


def _together(groups: Sequence[AttentionInputs], group_of: tuple[int, ...]) -> AttentionInputs:
    """Combine groups of the same sequences: all of them use the first one's splits for decodes."""
    first, *others = groups
    if not others:
        return first
    return replace(first, others=tuple(_cut_as(first, each) for each in others), group_of=group_of)


def _cut_as(first: AttentionInputs, other: AttentionInputs) -> AttentionInputs:
    decode, last = other.decode, other.last
    if decode is not None and first.decode is not None:
        decode = replace(decode, splits=first.decode.splits)
    if last is not None and first.last is not None:
        last = _cut_as(first.last, last)
    return replace(other, decode=decode, last=last)


def paged_attention(
    query: Tensor,
    cache: LayerCache,
    inputs: AttentionInputs,
    scale: float,
    sliding_window: int | None = None,
    logit_softcap: float | None = None,
    *,
    sinks: Tensor | None = None,
) -> Tensor:
    """query [T, num_heads, head_dim], with keys and values already in the cache -> [N, num_heads * head_dim].

    sliding_window: how many tokens a query sees, itself included; None: all. Blocks of this layer's group that no query
    sees any more may belong to other sequences. logit_softcap: of the scores (Gemma 2). sinks [num_heads]: an extra
    score per head that takes its share of the softmax and has no value (gpt-oss). Decodes and prompts are two launches,
    because their best kernels differ. On a GPU decodes begin while the last prompts are computed, on multiprocessors
    that those leave idle (kernels/dependent_launch.py).
    """
    query = inputs.narrow(query)
    out = empty_with_spare_rows(query.shape, query) if query.is_cuda else torch.empty(query.shape, dtype=query.dtype)
    decode, prefill = inputs.decode, inputs.prefill
    is_beside = decode is not None and prefill is not None and _runs_beside(decode, prefill, cache)
    if prefill is not None and is_beside:
        paged_attention_prefill(query, *cache, prefill, scale, out, sliding_window, logit_softcap, sinks)
    if decode is not None:
        end = decode.context_lens.shape[0]
        rows = query[:end], *cache, decode, scale, out[:end]
        paged_attention_decode(*rows, sliding_window, logit_softcap, sinks, is_beside=is_beside)
    if prefill is not None and not is_beside:
        paged_attention_prefill(query, *cache, prefill, scale, out, sliding_window, logit_softcap, sinks)
    return out.flatten(1)


def _runs_beside(decode: DecodeBatch, prefill: PrefillBatch, cache: LayerCache) -> bool:
    """Whether decodes may run beside the prompts launched just before: the kernel must leave padding rows alone, and
    the prompts must have no temporary memory that is free again (an fp8 cache is widened for them)."""
    is_plain = isinstance(cache.keys, Tensor) and decode.split_len is None
    return is_plain and decode.context_lens.is_cuda and prefill.context_lens.shape[0] > 0
