"""Carries out plans on one device: tensors in, model, sampler, ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.core.grammar import TokenMasks
from service.core.iteration_plan import IterationPlan, Sample, ScheduledSequence
from service.core.iteration_result import IterationResult
from service.core.sampling_params import SamplingParams
from service.models.causal_lm import CausalLM
from service.runner.attention_inputs import attention_inputs
from service.runner.drawn_ids import DrawnIds
from service.runner.grammar_masks import with_grammar_masks
from service.runner.kv_storage import KvStorage
from service.runner.kv_transfer import KvTransfer, TransferTiming
from service.runner.logprobs import DrawLogprobs, PromptLogprobs, score_prompts
from service.runner.sampling_rows import SamplingRows
from service.runner.selective_batching import FlatBatch, flatten
from service.runner.sequence_rows import SequenceRows
from service.runner.staging import IdsOnTheirWay, to_device
from service.sampling.sampler import Drawn, SamplingBatch, SamplingExtras, draw, sample


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a batch computed, on its way to the host; None where nothing is."""

    token_ids: IdsOnTheirWay | None = None
    logprobs: DrawLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None


class LaunchedIteration:
    """The engine's PendingIteration (service/engine/ports.py): outputs that the device may still be computing."""

    def __init__(self, outputs: Outputs, transfer: KvTransfer, awaits_transfer: bool) -> None:
        self._outputs = outputs
        self._transfer = transfer
        self._awaits_transfer = awaits_transfer

    def wait(self) -> IterationResult:
        """The drawn ids, what else was asked for, and the transfers that have finished by then."""
        outputs = self._outputs
        return IterationResult(
            () if outputs.token_ids is None else outputs.token_ids.wait(),
            self._transfer.take_finished(self._awaits_transfer),
            () if outputs.logprobs is None else outputs.logprobs.wait(),
            () if outputs.prompt_logprobs is None else outputs.prompt_logprobs.wait(),
        )


class ModelRunner:
    """The engine's Executor (service/engine/ports.py). Engine thread only, one plan at a time.

    Owns the model, the KV storage and the row that it remembers of each sequence.
    """

    def __init__(
        self,
        model: CausalLM,
        storage: KvStorage,
        device: torch.device,
        max_num_seqs: int,
        max_model_len: int,
        vocab_size: int,
        num_host_blocks: int = 0,
    ) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._storage = storage
        self._transfer = KvTransfer(storage, num_host_blocks)
        self._device = device
        self._block_size = storage.layout.block_size
        # Twice as many as run at once: one that has ended is released after the iteration that still had it.
        self._rows = SequenceRows(2 * max_num_seqs, -(-max_model_len // self._block_size))
        self._drawn = DrawnIds(self._rows.num_rows, device)
        self._sampling_rows = SamplingRows(vocab_size, device)

    @torch.inference_mode()
    def launch(self, plan: IterationPlan) -> LaunchedIteration:
        """Release, start transfers, copy, compute, sample. Ids are aligned with the plan's samples."""
        for sequence_id in plan.released:
            self._rows.release(sequence_id)
            self._sampling_rows.release(sequence_id)
        for transfer in plan.transfers:
            self._transfer.start(transfer)
        if plan.copies:
            self._storage.copy(plan.copies)
        outputs = self._compute(plan.scheduled, plan.masks) if plan.scheduled else Outputs()
        return LaunchedIteration(outputs, self._transfer, plan.awaits_transfer)

    def measure_swap(self) -> tuple[TransferTiming, ...]:
        """Timings to the host and back. Before serving: the blocks' contents are lost."""
        return self._transfer.measure()

    def warm_up(self) -> None:
        """One small prompt and one decode in block 0, so that the first request finds everything initialised.

        To be called while no sequence is alive: the block's contents are lost.
        """
        params = SamplingParams(max_tokens=2, temperature=1.0, top_p=0.9)
        draws = (Sample(-1, 0),)
        self.launch(IterationPlan((ScheduledSequence(-1, (0,) * 2, 0, 0, (0,), params, draws),))).wait()
        if self._block_size > 2:
            self.launch(IterationPlan((ScheduledSequence(-1, (0,), 2, 1, (), params, draws),))).wait()
        self.launch(IterationPlan((), released=(-1,))).wait()

    def _compute(self, scheduled: Sequence[ScheduledSequence], masks: TokenMasks | None) -> Outputs:
        batch = flatten(scheduled, self._rows, self._block_size)
        tensors = to_device(batch.arrays(), self._device)
        self._drawn.grow(self._rows.num_rows)
        if batch.has_pending:
            self._drawn.fill_in(tensors["token_ids"], tensors["decode_rows"])
        hidden: Tensor = self._model(
            tensors["token_ids"],
            tensors["positions"],
            self._storage.layers,
            attention_inputs(batch, tensors, self._block_size),
        )
        prompt_logprobs = None
        if not batch.is_plain:
            self._sampling_rows.update(scheduled, batch, tensors["token_ids"])
            prompt_logprobs = score_prompts(
                scheduled, batch, hidden, self._model.compute_logits, self._vocab_size, self._device
            )
        if not len(batch.logit_rows):
            return Outputs(prompt_logprobs=prompt_logprobs)
        logits = self._model.compute_logits(hidden.index_select(0, tensors["logit_rows"]))
        extras, num_logprobs = None, list[int | None]()
        if not batch.is_plain:
            extras, num_logprobs = self._sampling_rows.extras(scheduled)
        drawn = self._draw(batch, tensors, logits, with_grammar_masks(extras, masks, self._device))
        self._drawn.note(tensors["draw_rows"], drawn.token_ids)
        logprobs = None if drawn.logprobs is None else DrawLogprobs(drawn.logprobs, num_logprobs)
        return Outputs(IdsOnTheirWay(drawn.token_ids), logprobs, prompt_logprobs)

    def _draw(
        self, batch: FlatBatch, tensors: Mapping[str, Tensor], logits: Tensor, extras: SamplingExtras | None
    ) -> Drawn:
        """N ids. tensors: the batch's arrays on the device. logits: of its `logit_rows`; written if `extras` say so.

        One row's logits may serve several draws (the n choices of a prompt).
        """
        num_draws = len(batch.seeds)
        if num_draws != len(batch.logit_rows):
            logits = logits.repeat_interleave(tensors["samples_per_row"], dim=0, output_size=num_draws)
        parameters = SamplingBatch(
            temperature=tensors["temperature"],
            top_k=tensors["top_k"],
            top_p=tensors["top_p"],
            seeds=tensors["seeds"],
            positions=tensors["sample_positions"],
            is_greedy=not batch.temperature.any(),
        )
        return Drawn(sample(logits, parameters)) if extras is None else draw(logits, parameters, extras)
