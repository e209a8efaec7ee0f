"""A flat batch through the model: in one go, replayed from a recording, or in parts where memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from kernels.cpu_loops import loops_for
from service.core.iteration_plan import ScheduledSequence
from service.layers.attention import AttentionInputs, LayerCache
from service.models.causal_lm import CausalLM
from service.runner.attention_inputs import attention_inputs
from service.runner.giving_up import UntilSomebodyComes
from service.runner.halving import Part, compute_in_halves, places
from service.runner.kv_storage import KvStorage
from service.runner.recorded_steps import RecordedSteps
from service.runner.selective_batching import FlatBatch, flatten
from service.runner.sequence_rows import SequenceRows
from service.runner.staging import to_device

logger = logging.getLogger(__name__)


class ForwardPass:
    """Hidden states of plans, [tokens, hidden_size]; keys and values go to the storage. Engine thread.

    scheduled and batch: of one plan; tensors: the batch's arrays on the device, its pending ids filled in.
    """

    def __init__(self, model: CausalLM, storage: KvStorage, rows: SequenceRows, device: torch.device) -> None:
        self._model = model
        self._storage = storage
        self._rows = rows
        self._device = device
        self._block_size = storage.layout.block_size
        self._recorded: RecordedSteps | None = None
        self._caches: Sequence[LayerCache] = storage.layers

    def record_steps(self) -> None:
        """Decode steps that consist of compiled loops are recorded and replayed from now on. On a CPU."""
        loops = loops_for(self._storage.blocks)
        if loops is not None:
            self._recorded = RecordedSteps(self.compute, loops.new_recorder(), self._rows, self._block_size)

    @contextmanager
    def given_up_when(self, must_give_up: Callable[[], bool] | None) -> Iterator[None]:
        """Meanwhile `compute` raises GivenUpError soon after `must_give_up` has become true. On a GPU."""
        if must_give_up is not None:
            self._caches = UntilSomebodyComes(self._storage.layers, must_give_up)
        try:
            yield
        finally:
            self._caches = self._storage.layers

    def compute(self, token_ids: Tensor, positions: Tensor, attention: AttentionInputs) -> Tensor:
        """As CausalLM.forward, over the storage."""
        hidden: Tensor = self._model(token_ids, positions, self._caches, attention)
        return hidden

    def of_logit_rows(
        self, scheduled: Sequence[ScheduledSequence], batch: FlatBatch, tensors: Mapping[str, Tensor]
    ) -> Tensor:
        """Of the batch's `logit_rows`, in their order."""
        # All decodes are read; and of prompts that go on nothing is, but no kernel takes an empty batch.
        if batch.num_decode < len(batch.rows) and len(batch.logit_rows):
            hidden = self._in_one_go(batch, tensors, only_logits=True)
            if hidden is not None:
                return hidden
            hidden = self._in_parts(scheduled, batch, tensors)
        else:
            hidden = self.of_all_tokens(scheduled, batch, tensors)
        return hidden.index_select(0, tensors["logit_rows"])

    def of_all_tokens(
        self, scheduled: Sequence[ScheduledSequence], batch: FlatBatch, tensors: Mapping[str, Tensor]
    ) -> Tensor:
        """Of all of the batch's tokens."""
        hidden = self._in_one_go(batch, tensors, only_logits=False)
        return self._in_parts(scheduled, batch, tensors) if hidden is None else hidden

    def _in_one_go(self, batch: FlatBatch, tensors: Mapping[str, Tensor], *, only_logits: bool) -> Tensor | None:
        """None: the device has no memory for it."""
        try:
            return self._computed(batch, tensors, tensors["token_ids"], only_logits=only_logits)
        except torch.OutOfMemoryError:
            if len(batch.token_ids) == 1:
                raise
            return None

    def _in_parts(
        self, scheduled: Sequence[ScheduledSequence], batch: FlatBatch, tensors: Mapping[str, Tensor]
    ) -> Tensor:
        logger.warning("no memory for an iteration of %d tokens: it is computed in parts", len(batch.token_ids))

        def compute(parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
            part = flatten([part.share for part in parts], self._rows, self._block_size)
            there = to_device({**part.arrays(), "places": places(parts, part)}, self._device)
            token_ids = tensors["token_ids"].index_select(0, there["places"])
            return there["places"], self._computed(part, there, token_ids, only_logits=False)

        return compute_in_halves(scheduled, batch, compute)

    def _computed(
        self, batch: FlatBatch, tensors: Mapping[str, Tensor], token_ids: Tensor, *, only_logits: bool
    ) -> Tensor:
        hidden = None if self._recorded is None else self._recorded.try_replay(batch, token_ids)
        if hidden is not None:
            return hidden
        attention = attention_inputs(batch, tensors, self._block_size, only_logits=only_logits)
        return self.compute(token_ids, tensors["positions"], attention)
