"""Carries out plans on one device: tensors in, model, sampler, ids out."""

from __future__ import annotations

from dataclasses import replace

import torch

from service.core.iteration import IterationPlan, IterationResult
from service.models.causal_lm import CausalLM
from service.runner.adapter_tables import AdapterTables
from service.runner.batch_columns import ADAPTER_COLUMNS, BATCH_COLUMNS, Int64Array
from service.runner.forward_pass import ForwardPass
from service.runner.host_blocks import HostBlocks, PlainHostBlocks
from service.runner.kv_storage import KvStorage
from service.runner.kv_transfer import KvTransfer
from service.runner.replays import Replays
from service.runner.sampling_rows import SamplingRows
from service.runner.sequence_rows import SequenceRows
from service.runner.staging import StagingTurns
from service.runner.step import Outputs, Step
from service.runner.trainings import LaunchedShare, Trainings


class ModelRunner:
    """The engine's Executor (service/engine/ports.py). Engine thread only; one plan at a time.

    Owns the model, the KV storage and the sequence rows. adapters: None if none are served. trainings: those that plans
    may advance. replays: the ways to compute a step. all_deterministic: every row of every step gets the same bits as
    it would alone in a batch, not only the rows of sequences that ask for it.
    """

    def __init__(
        self,
        model: CausalLM,
        storage: KvStorage,
        device: torch.device,
        max_num_seqs: int,
        max_model_len: int,
        vocab_size: int,
        host_blocks: HostBlocks | None = None,
        adapters: AdapterTables | None = None,
        *,
        all_deterministic: bool = False,
    ) -> None:
        self.device = device
        self.all_deterministic = all_deterministic
        self.adapters = adapters
        self.max_num_seqs = max_num_seqs
        self.storage = storage
        self.transfer = KvTransfer(storage, host_blocks or PlainHostBlocks(storage.layout, 0, pinned=False))
        self.trainings = Trainings(storage, self.transfer)
        self._block_size = storage.layout.block_size
        max_blocks, groups = -(-max_model_len // self._block_size), storage.layout.groups
        if groups is None or not groups.tables.num_windowed:  # else a table also keeps entries of freed blocks
            max_blocks = min(max_blocks, storage.num_blocks)
        # Twice max_num_seqs: a finished sequence's row is released only after the last iteration that contains it.
        columns = (BATCH_COLUMNS if adapters is None else ADAPTER_COLUMNS).over(groups)
        self._rows = SequenceRows(2 * max_num_seqs, max_blocks, columns)
        self._forward_pass = ForwardPass(model, storage, self._rows, device, max_model_len)
        if adapters is not None:
            adapters.install(self._forward_pass.adapter_step)
        self._sampling_rows = SamplingRows(self._rows, vocab_size, device)
        self.replays = Replays(
            model,
            storage,
            self._forward_pass,
            self._rows,
            self._sampling_rows,
            vocab_size,
            device,
            0 if adapters is None else adapters.num_slots,
            all_deterministic=all_deterministic,
        )
        self._hand_over = self.replays.hand_over
        self._turns = StagingTurns(device) if device.type == "cuda" else None

    @torch.inference_mode()
    def launch(self, plan: IterationPlan) -> LaunchedIteration | LaunchedShare:
        """Release rows, load adapters, copy blocks, compute, sample; ids are in the order of the plan's samples.
        Transfers run beside the computation and are launched last, so that the device is busy meanwhile. A plan with a
        training share runs that training's layer steps instead."""
        for row in plan.released:
            self._sampling_rows.release(row)
        before = self.transfer.mark() if plan.transfers else None
        try:
            if plan.adapter_loads:
                assert self.adapters is not None
                self.adapters.load(plan.adapter_loads)
            if plan.copies:
                self.storage.copy(plan.copies)
            if plan.training is not None:
                return self.trainings.advance(plan.training)
            outputs = self._compute(plan) if plan.computes else Outputs()
            if plan.transfers:
                self.transfer.start(plan.transfers, before)
        except BaseException:
            self.transfer.abandon()
            self._rows.note_all()  # changes of sequences that were not in the plan may be lost with it
            raise
        return LaunchedIteration(outputs, self.transfer, awaits_transfer=plan.awaits_transfer)

    def _compute(self, plan: IterationPlan) -> Outputs:
        # Before anything that may fail (see HandOver).
        received = None if self._hand_over is None else self._hand_over.receive(plan.num_scheduled_tokens)
        turn = None if self._turns is None else self._turns.take()
        step = Step(plan, turn, self._rows, self._block_size, received, all_deterministic=self.all_deterministic)
        outputs = next(way for way in self.replays.ways if way.takes(step)).compute(step)
        return outputs if self._hand_over is None else replace(outputs, compute_s=self._hand_over.compute_s())

    def note_drawn(self, rows: Int64Array, token_ids: Int64Array) -> None:
        """For a stage before the last: the last one has drawn these ids for these rows, and the next plans compute
        them."""
        assert self.replays.stage_step is not None
        self.replays.stage_step.note_drawn(rows, token_ids)


class LaunchedIteration:
    """The engine's PendingIteration (service/engine/ports.py): outputs that the device may still be computing."""

    def __init__(self, outputs: Outputs, transfer: KvTransfer, *, awaits_transfer: bool) -> None:
        self._outputs = outputs
        self._transfer = transfer
        self._awaits_transfer = awaits_transfer

    def is_done(self) -> bool:
        token_ids = self._outputs.token_ids
        try:
            return token_ids is None or token_ids.is_done()
        except RuntimeError:  # a device error: `wait` raises it
            return True

    def wait(self) -> IterationResult:
        """The drawn ids, logprobs and pooled states, and the transfers that have finished by now."""
        outputs, ids = self._outputs, self._outputs.token_ids
        try:
            return IterationResult(
                () if ids is None else ids.wait(),
                self._transfer.take_finished(self._awaits_transfer) if self._transfer.under_way else (),
                () if outputs.logprobs is None else outputs.logprobs.wait(),
                () if outputs.prompt_logprobs is None else outputs.prompt_logprobs.wait(),
                () if outputs.pooled is None else outputs.pooled.wait(),
                outputs.is_replayed,
                outputs.compute_s if ids is None or outputs.compute_s is not None else ids.compute_s,
            )
        except BaseException:
            self._transfer.abandon()
            raise
