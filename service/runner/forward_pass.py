"""The forward pass of a batch: at once, or in parts if memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kernels.lora_tensors import TokenSlots
from kernels.lora_tiles import tile_size
from kernels.paged_attention_decode import decode_batch
from kernels.paged_attention_prefill import PrefillBatch, prefill_batch
from kernels.reshape_and_cache import cache_slots
from service.layers.adapter_method import AdapterInputs, AdapterStep
from service.layers.attention import AttentionInputs, LayerCache
from service.models.causal_lm import CausalLM
from service.runner.batch_columns import BATCH_COLUMNS, BatchColumns, Int64Array
from service.runner.device_copies import to_device
from service.runner.giving_up import UntilSomebodyComes
from service.runner.halving import in_halves
from service.runner.kv_storage import KvStorage
from service.runner.row_invariance import RowInvariance
from service.runner.selective_batching import FlatBatch, PlanColumns, flatten
from service.runner.sequence_rows import SequenceRows


class ForwardPass:
    """Computes the hidden states of plans, [tokens, hidden_size], and writes keys and values to the storage. Engine
    thread.

    planned, batch: the same plan as columns and as a flat batch. tensors: the batch's arrays on the device, with
    pending ids filled in; "received" is the previous pipeline stage's output, if there is one. adapter_step: what the
    model's linears read about adapters. row_invariance: whether the next steps are deterministic, and how.
    """

    def __init__(
        self, model: CausalLM, storage: KvStorage, rows: SequenceRows, device: torch.device, max_model_len: int
    ) -> None:
        self.adapter_step = AdapterStep()
        self.row_invariance = RowInvariance(model, device, max_model_len, plain_cache=not storage.layout.is_fp8)
        self._model = model
        self._may_cut = model.parallel.size * model.stage.size == 1
        self._storage = storage
        self._rows = rows
        self._device = device
        self._block_size = storage.layout.block_size
        self._caches: Sequence[LayerCache] = storage.layers

    @contextmanager
    def given_up_when(self, must_give_up: Callable[[], bool] | None) -> Iterator[None]:
        """Inside this context, `compute` raises GivenUpError soon after `must_give_up` becomes true. On a GPU."""
        if must_give_up is not None:
            self._caches = UntilSomebodyComes(self._storage.layers, must_give_up)
        try:
            yield
        finally:
            self._caches = self._storage.layers

    def compute(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionInputs,
        adapters: AdapterInputs | None = None,
        received: Tensor | None = None,
    ) -> Tensor:
        """As CausalLM.forward, over the storage. adapters: each token's; None if no token has one."""
        self.adapter_step.inputs = adapters
        if self._multiplies_in_registers:
            attention = attention.keeping_l1()
        hidden: Tensor = self._model(token_ids, positions, self._caches, attention, received)
        return hidden

    @cached_property
    def _multiplies_in_registers(self) -> bool:
        return self._device.type == "cuda" and self._model.multiplies_in_registers

    def of_logit_rows(self, planned: PlanColumns, batch: FlatBatch, tensors: Mapping[str, Tensor]) -> Tensor:
        """The hidden states of the batch's `logit_rows`, in their order."""
        # Worth it only beside prompts, as every decode has a logit row; and no kernel takes an empty batch.
        only_logits = batch.num_decode < batch.num_seqs and len(batch.logit_rows) > 0
        hidden, is_whole = self._computed(planned, batch, tensors, only_logits=only_logits)
        return hidden if only_logits and is_whole else hidden.index_select(0, tensors["logit_rows"])

    def of_all_tokens(self, planned: PlanColumns, batch: FlatBatch, tensors: Mapping[str, Tensor]) -> Tensor:
        """The hidden states of all of the batch's tokens."""
        return self._computed(planned, batch, tensors, only_logits=False)[0]

    def _computed(
        self, planned: PlanColumns, batch: FlatBatch, tensors: Mapping[str, Tensor], *, only_logits: bool
    ) -> tuple[Tensor, bool]:
        """(hidden states, whether they were computed at once). In parts, they are always those of all tokens.

        Nothing depends on where the parts are cut: a token attends to the cache, where all tokens before it are.
        """
        whole: Tensor | None = None
        as_prompts, split_len = self.row_invariance.takes_all_as_prompts, self.row_invariance.split_len

        def compute(first: int, stop: int) -> Tensor:
            nonlocal whole
            if stop - first == batch.num_tokens:
                attention = attention_inputs(
                    batch,
                    tensors,
                    self._block_size,
                    self._rows.columns,
                    only_logits=only_logits,
                    all_as_prompts=as_prompts,
                    split_len=split_len,
                )
                adapters = adapter_inputs(tensors, only_logits=only_logits)
                received = tensors.get("received")
                return self.compute(tensors["token_ids"], tensors["positions"], attention, adapters, received)
            some = planned.part(first, stop)
            part = flatten(some, self._rows, self._block_size)
            places = np.empty_like(some.token_ids)
            places[_places_in(part, some)] = _places_in(batch, planned)[first:stop]
            there = to_device({**part.arrays(), "places": places}, self._device)
            token_ids = tensors["token_ids"].index_select(0, there["places"])
            attention = attention_inputs(
                part, there, self._block_size, self._rows.columns, all_as_prompts=as_prompts, split_len=split_len
            )
            received = tensors["received"].index_select(0, there["places"]) if "received" in tensors else None
            hidden = self.compute(token_ids, there["positions"], attention, adapter_inputs(there), received)
            if whole is None:
                whole = hidden.new_empty(batch.num_tokens, hidden.shape[1])
            return whole.index_copy_(0, there["places"], hidden)

        at_once = 1 if self.row_invariance.takes_one_by_one else batch.num_tokens
        computed = in_halves(batch.num_tokens, "tokens", compute, at_once=at_once, may_cut=self._may_cut)
        return computed[0], len(computed) == 1


def _places_in(batch: FlatBatch, planned: PlanColumns) -> Int64Array:
    """[T]: for each token in the plan's order, its place in the flat batch."""
    query_lens = planned.query_lens
    starts = np.cumsum(query_lens) - query_lens
    places: Int64Array = np.arange(batch.num_tokens) + np.repeat(batch.token_starts - starts, query_lens)
    return places


def attention_inputs(
    batch: FlatBatch,
    tensors: Mapping[str, Tensor],
    block_size: int,
    columns: BatchColumns = BATCH_COLUMNS,
    *,
    only_logits: bool = False,
    all_as_prompts: bool = False,
    split_len: int | None = None,
) -> AttentionInputs:
    """tensors: the batch's arrays on the device, by the names of `columns`. Decodes and prompts get separate launches,
    since their best kernels differ.

    only_logits: the last layer computes only the rows that logits are read from, at least one. all_as_prompts: treat
    decodes as prompts of one token, so that a token has the same bits either way. split_len: the fixed length of KV
    splits, for kernels that have the same bits either way."""
    border, num_seqs = 0 if all_as_prompts else batch.num_decode, batch.num_seqs
    context_lens = tensors["context_lens"]

    def of_group(block_table: Tensor, slots: Tensor) -> AttentionInputs:
        decode = prefill = None
        if border:
            decode = decode_batch(block_table[:border], context_lens[:border], block_size, split_len=split_len)
        if border < num_seqs:
            query_lens = batch.query_starts[border + 1 :] - batch.query_starts[border:-1]
            prefill = prefill_batch(
                block_table[border:],
                tensors["query_starts"][border:],
                context_lens[border:],
                max_query_len=int(query_lens.max()),
                block_size=block_size,
                split_len=split_len,
            )
        inputs = AttentionInputs(cache_slots(slots, block_size), decode, prefill)
        if only_logits:
            lens, places = tensors["logit_lens"], tensors["logit_places"]
            if all_as_prompts:
                prompts = prompts_of_one_token(block_table, lens, block_size, places)
                return inputs.read_at(tensors["logit_rows"], prefill=prompts)
            last = decode_batch(block_table, lens, block_size, places, split_len)
            return inputs.read_at(tensors["logit_rows"], last)
        return inputs

    slots = [tensors[name] for name in columns.slots]
    return AttentionInputs.by_group(columns.group_of, tensors["block_table"], slots, of_group)


def prompts_of_one_token(block_table: Tensor, context_lens: Tensor, block_size: int, rows: Tensor) -> PrefillBatch:
    """As `decode_batch` of the same arguments, but computed by the prefill kernel."""
    starts = torch.arange(len(context_lens) + 1, dtype=torch.int32, device=context_lens.device)
    return prefill_batch(block_table, starts, context_lens, 1, block_size, rows)


def adapter_inputs(tensors: Mapping[str, Tensor], *, only_logits: bool = False) -> AdapterInputs | None:
    """Arguments as of `attention_inputs`; None if no token has an adapter."""
    if "adapter_tiles" not in tensors:
        return None
    tokens = token_slots(tensors["adapter_slots"], tensors["adapter_tiles"])
    return AdapterInputs(tokens, token_slots(tensors["read_slots"], tensors["read_tiles"]) if only_logits else tokens)


def token_slots(slots: Tensor, tiles: Tensor) -> TokenSlots:
    """tiles: flat."""
    return TokenSlots(slots, tiles.view(-1, 1 + tile_size(slots.shape[0])))
