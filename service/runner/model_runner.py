"""Carries out plans on one device: tensors in, model, sampler, ids out."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import median

import torch
from torch import Tensor

from service.core.grammar import TokenMasks
from service.core.iteration_plan import (
    BlockCopy,
    IterationPlan,
    Past,
    Sample,
    ScheduledSequence,
    SharesGoingOn,
    Transfer,
)
from service.core.iteration_result import FinishedTransfer
from service.core.sampling_params import SamplingParams
from service.models.causal_lm import CausalLM
from service.runner.cuda_graphs import StepGraphs, StepOutputs, StepParts, inputs_of
from service.runner.decode_rows import DecodeRows, decode_rows, is_decode
from service.runner.device_block_table import DeviceBlockTable
from service.runner.drawn_ids import DrawnIds
from service.runner.draws import LogitsOf, draw_all
from service.runner.forward_pass import ForwardPass
from service.runner.grammar_masks import with_grammar_masks
from service.runner.graph_sizes import GraphSize, PaddedStep, rows_of_logits
from service.runner.host_blocks import HostBlocks, PlainHostBlocks
from service.runner.kv_storage import KvStorage
from service.runner.kv_transfer import KvTransfer, TransferTiming
from service.runner.launched_iteration import LaunchedIteration, Outputs
from service.runner.logprobs import DrawLogprobs, PromptLogprobs, score_prompts
from service.runner.sampling_rows import SamplingRows
from service.runner.selective_batching import FlatBatch, flatten
from service.runner.sequence_rows import SequenceRows
from service.runner.staging import to_device
from service.runner.staging_turns import IdsOnTheirWay, StagingTurn, StagingTurns
from service.runner.step_inputs import StepInputs
from service.sampling.sampler import SamplingBatch, sample

_SWAP_ROUNDS = 5


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
        host_blocks: HostBlocks | None = None,
    ) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._storage = storage
        self._transfer = KvTransfer(storage, host_blocks or PlainHostBlocks(storage.layout, 0, pinned=False))
        self._device = device
        self._max_num_seqs = max_num_seqs
        self._block_size = storage.layout.block_size
        max_blocks = min(-(-max_model_len // self._block_size), storage.num_blocks)
        # Twice as many as run at once: one that has ended is released after the iteration that still had it.
        self._rows = SequenceRows(2 * max_num_seqs, max_blocks)
        self._forward_pass = ForwardPass(model, storage, self._rows, device)
        self._drawn = DrawnIds(self._rows.num_rows, device)
        self._sampling_rows = SamplingRows(vocab_size, device)
        self._step = StepParts(self._hidden, self._draw)  # what a graph captures; without one it computes the same
        self._graphs: StepGraphs | None = None
        self._turns = StagingTurns(device)
        self._can_go_on = False  # from the last plan that had shares: it was drawn by a graph of decodes alone

    @torch.inference_mode()
    def launch(self, plan: IterationPlan) -> LaunchedIteration:
        """Release, copy, compute, sample; ids are aligned with the plan's samples. Transfers run beside that and are
        launched last, so that the device computes meanwhile."""
        for sequence_id in plan.released:
            self._rows.release(sequence_id)
            self._sampling_rows.release(sequence_id)
        before = self._transfer.mark() if plan.transfers else None
        replays = self._num_replays
        try:
            if plan.copies:
                self._storage.copy(plan.copies)
            outputs = self._compute(plan, self._turns.take()) if plan.scheduled else Outputs()
            if plan.transfers:
                self._transfer.start(plan.transfers, before)
        except BaseException:
            self._transfer.abandon()
            self._rows.note_all()  # changes of sequences that were not in the plan may be lost with it
            raise
        is_replayed = self._num_replays > replays
        return LaunchedIteration(outputs, self._transfer, plan.awaits_transfer, is_replayed=is_replayed)

    @property
    def _num_replays(self) -> int:
        return 0 if self._graphs is None else self._graphs.num_replays

    @property
    def padded_size(self) -> Callable[[int, int, int], GraphSize | None] | None:
        """(num_tokens, num_decodes, num_prompts) of a step -> the size that it is padded to, None if it is not. None
        if no step is padded."""
        return None if self._graphs is None else self._graphs.padded_size

    def recent_steps(self) -> Collection[PaddedStep]:
        """The last steps that were replayed, or could not be for want of a size."""
        return () if self._graphs is None else self._graphs.recent_steps

    def measure_swap(self) -> tuple[TransferTiming, ...]:
        """Timings to the host and back, of a plan's first transfer and of the one behind it, beside a step, as in
        traffic: it takes some of the memory's bandwidth. Before serving: the blocks' contents are lost.

        Medians of several rounds. The plans take turns, in another order each round: a host that launches the same one
        again and again does it faster than it ever will in traffic, and a first transfer of few blocks waits for that.
        """
        plans = tuple(self._transfer.probes())
        rounds: list[list[tuple[FinishedTransfer, ...]]] = [[] for _ in plans]
        shuffled = random.Random(0)
        for _ in range(_SWAP_ROUNDS):
            for number in shuffled.sample(range(len(plans)), len(plans)):
                rounds[number].append(self._warm_up(1, SamplingParams(max_tokens=2), *plans[number]))
        return tuple(timing for pair in zip(plans, rounds, strict=True) for timing in _medians(*pair))

    def warm_up(self) -> None:
        """Compute small iterations of every kind, so that the first request finds all kernels compiled and loaded.

        To be called while no sequence is alive: the contents of the first two blocks are lost.
        """
        drawing = SamplingParams(max_tokens=2, temperature=1.0, top_p=0.9)
        greedy = SamplingParams(max_tokens=2, temperature=0.0)
        for params in (greedy, drawing):
            self._warm_up(1, params)
        if self._device.type == "cuda":
            for count in sorted({min(2**i, self._max_num_seqs) for i in range(11)}):
                self._warm_up(count, drawing)  # the attention kernel differs by the number of sequences
            asking = replace(drawing, min_p=0.1, repetition_penalty=1.1, logit_bias=((0, 1.0),), num_logprobs=2)
            for params in (asking, replace(asking, temperature=0.0, allowed_token_ids=(0, 1))):
                self._warm_up(1, params)
        if self._storage.num_blocks > 1:
            self.launch(IterationPlan((), copies=(BlockCopy(0, 1),))).wait()

    def _warm_up(self, num_decodes: int, params: SamplingParams, *transfers: Transfer) -> tuple[FinishedTransfer, ...]:
        """Run one iteration of a short prompt and `num_decodes` decodes, all in block 0, beside the transfers, and
        return these once all have finished."""
        ids = range(-1 - num_decodes, 0)
        length = min(2, self._block_size)
        past = Past((), length)
        shares = [ScheduledSequence(i, (0,), 0, 0, (0,), params, (Sample(i, 0),), past) for i in ids[1:]]
        prompt = ScheduledSequence(ids[0], (0,) * length, 0, 0, (0,), params, (Sample(ids[0], 0),), past)
        result = self.launch(IterationPlan((prompt, *shares), transfers=transfers)).wait()
        finished = result.finished_transfers
        finished += self.launch(IterationPlan((), released=tuple(ids))).wait().finished_transfers
        while len(finished) < len(transfers):
            finished += self._transfer.take_finished(wait=True)
        return finished

    @torch.inference_mode()
    def capture_graphs(self, sizes: Sequence[GraphSize], must_give_up: Callable[[], bool] | None = None) -> None:
        """Steps that fit one of these sizes are replayed from now on. On a GPU, while no iteration runs; may be called
        again for more sizes. Raises GivenUpError soon after `must_give_up` has become true."""
        if self._graphs is None:
            self._graphs = StepGraphs(self._step, self._rows, self._block_size, self._device)
        with self._forward_pass.given_up_when(must_give_up):
            self._graphs.capture(sizes)

    def record_steps(self) -> None:
        """Decode steps that consist of compiled loops are recorded and replayed from now on. On a CPU."""
        self._forward_pass.record_steps()

    @torch.inference_mode()
    def compute_padding(self, size: GraphSize) -> None:
        """The step that a graph of this size holds, of padding alone, kernel by kernel."""
        table = DeviceBlockTable(self._rows, self._device)
        self._step.whole(inputs_of(size, table.tensor, self._block_size).step)

    def _compute(self, plan: IterationPlan, turn: StagingTurn) -> Outputs:
        """In the way that costs the host least. For plain draws by a graph alone: that of the last decodes once more,
        one of decodes, or one of decodes and prompts. Else by `_compute_batch`."""
        scheduled, masks, graphs, decodes = plan.scheduled, plan.masks, self._graphs, None
        can_go_on, self._can_go_on = self._can_go_on, False
        if graphs is not None and can_go_on and isinstance(scheduled, SharesGoingOn) and masks is None:
            return self._drawn_by(graphs.replay_going_on(scheduled, turn), len(scheduled), turn)
        if graphs is not None and graphs.has_room_for(len(scheduled)) and is_decode(scheduled):
            decodes = decode_rows(scheduled, self._rows, self._block_size)
            if masks is None and not self._rows.asks_more[decodes.rows].any():
                return self._drawn_by(graphs.replay(decodes, turn), len(scheduled), turn)
        batch = flatten(scheduled, self._rows, self._block_size)
        if graphs is not None and masks is None and batch.is_plain and graphs.can_replay_mixed(batch):
            return Outputs(IdsOnTheirWay(graphs.replay_mixed(batch, turn).token_ids, len(batch.seeds), turn))
        shares = tuple(scheduled)  # those in lockstep are made when looked at, and each will be several times
        return self._compute_batch(shares, batch, decodes, turn, masks)

    def _compute_batch(
        self,
        scheduled: tuple[ScheduledSequence, ...],
        batch: FlatBatch,
        decodes: DecodeRows | None,
        turn: StagingTurn,
        masks: TokenMasks | None,
    ) -> Outputs:
        """By tensors made for this batch, kernel by kernel. decodes: the same batch as rows, if a graph has room for
        them but cannot draw what they ask for: then it gives the logits."""
        turn.begins()
        tensors = to_device(batch.arrays(), self._device, turn)
        self._drawn.grow(self._rows.num_rows)
        if batch.has_pending:
            self._drawn.fill_in(tensors["token_ids"], tensors["rows"][: batch.num_decode])
        if not batch.is_plain:
            self._sampling_rows.update(scheduled, batch, tensors["token_ids"])
        if self._graphs is not None and decodes is not None:
            logits = self._graphs.replay(decodes, turn).logits  # kept as they are: drawing again begins with them
            return self._sample(scheduled, batch, tensors, lambda first, stop: logits[first:stop].clone(), turn, masks)

        prompt_logprobs = None
        if not batch.is_plain and any(share.targets for share in scheduled):
            hidden = self._forward_pass.of_all_tokens(scheduled, batch, tensors)
            prompt_logprobs = score_prompts(
                scheduled, batch, hidden, self._model.compute_logits, self._vocab_size, self._device
            )
            hidden = hidden.index_select(0, tensors["logit_rows"])
        else:
            hidden = self._forward_pass.of_logit_rows(scheduled, batch, tensors)
        if not len(batch.logit_rows):
            return Outputs(IdsOnTheirWay(tensors["token_ids"], 0, turn), prompt_logprobs=prompt_logprobs)

        def logits_of(first: int, stop: int) -> Tensor:
            return self._model.compute_logits(hidden[first:stop])

        return self._sample(scheduled, batch, tensors, logits_of, turn, masks, prompt_logprobs)

    def _drawn_by(self, replayed: StepOutputs, num: int, turn: StagingTurn) -> Outputs:
        """Of decodes alone, by a graph alone."""
        outputs = Outputs(IdsOnTheirWay(replayed.token_ids, num, turn))
        self._can_go_on = True
        return outputs

    def _sample(
        self,
        scheduled: Sequence[ScheduledSequence],
        batch: FlatBatch,
        tensors: Mapping[str, Tensor],
        logits_of: LogitsOf,
        turn: StagingTurn,
        masks: TokenMasks | None,
        prompt_logprobs: PromptLogprobs | None = None,
    ) -> Outputs:
        extras, num_logprobs = None, list[int | None]()
        if not batch.is_plain:
            extras, num_logprobs = self._sampling_rows.extras(scheduled)
        extras_of = cache(partial(with_grammar_masks, extras, masks, self._device))
        parameters = SamplingBatch.of(tensors, is_greedy=not batch.temperature.any())
        drawn = draw_all(batch, logits_of, parameters, extras_of)
        self._drawn.note(tensors["draw_rows"], drawn.token_ids)
        logprobs = None if drawn.logprobs is None else DrawLogprobs(drawn.logprobs, num_logprobs)
        return Outputs(IdsOnTheirWay(drawn.token_ids, len(batch.seeds), turn), logprobs, prompt_logprobs)

    def _hidden(self, inputs: StepInputs) -> Tensor:
        """See StepParts."""
        self._drawn.fill_in(inputs.token_ids, inputs.decode_rows)
        attention = inputs.attention.afresh()
        return self._forward_pass.compute(inputs.token_ids, inputs.positions, attention)

    def _draw(self, hidden: Tensor, inputs: StepInputs, num_draws: int) -> StepOutputs:
        """See StepParts."""
        num_rows = rows_of_logits(num_draws, len(hidden))
        logits = self._model.compute_logits(hidden[:num_rows])[:num_draws]
        token_ids = sample(logits, inputs.sampling.part(0, num_draws))
        self._drawn.note(inputs.draw_rows[:num_draws], token_ids)
        return StepOutputs(token_ids, logits)


def _medians(transfers: Sequence[Transfer], rounds: Sequence[Sequence[FinishedTransfer]]) -> Iterator[TransferTiming]:
    """Of one plan's transfers, timed in several rounds."""
    for transfer, of_one in zip(transfers, zip(*rounds, strict=True), strict=True):
        seconds = median(finished.seconds or 0.0 for finished in of_one)
        yield TransferTiming(transfer.to_host, len(transfer.device_blocks), seconds, of_one[0].is_first)
