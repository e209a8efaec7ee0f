"""Carries out plans on one device: tensors in, model, sampler, ids out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch

from kernels.cpu_loops import loops_for
from service.core.iteration_plan import IterationPlan
from service.core.iteration_result import IterationResult
from service.layers.pipeline_stage import is_last
from service.models.causal_lm import CausalLM
from service.runner.adapter_tables import AdapterTables
from service.runner.batch_columns import ADAPTER_COLUMNS, BATCH_COLUMNS, Int64Array
from service.runner.cuda_graphs import GraphPlace, SameDecodesAgain, StepGraphs
from service.runner.eager_step import EagerStep
from service.runner.forward_pass import ForwardPass
from service.runner.graph_sizes import GraphSize, PaddedStep
from service.runner.graph_step import GraphStep
from service.runner.graph_ways import DecodeGraph, DecodeGraphLogits, MixedGraph
from service.runner.host_blocks import HostBlocks, PlainHostBlocks
from service.runner.kv_storage import KvStorage
from service.runner.kv_transfer import KvTransfer
from service.runner.recorded_steps import RecordedDecodesAgain, RecordedSteps
from service.runner.sampling_rows import SamplingRows
from service.runner.sequence_rows import DeviceBlockTable, DrawnIds, SequenceRows
from service.runner.stage_step import HandOver, StageStep
from service.runner.staging import StagingTurns
from service.runner.step_ways import Outputs, Step, StepWay
from service.runner.trainings import LaunchedShare, Trainings
from service.sampling.vocab_shard import VocabShard


class ModelRunner:
    """The engine's Executor (service/engine/ports.py). Engine thread only, one plan at a time.

    Owns the model, the KV storage and what is remembered in each row. adapters: None where none are served. trainings:
    those that plans may have shares of. all_deterministic: every row of every step has the bits that it has alone, not
    only where a sequence asks for it.
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
        self._model = model
        self._block_size = storage.layout.block_size
        max_blocks, groups = -(-max_model_len // self._block_size), storage.layout.groups
        if groups is None or not groups.tables.num_windowed:  # else a sequence has entries for blocks that are others'
            max_blocks = min(max_blocks, storage.num_blocks)
        # Twice as many as run at once: one that has ended is released after the iteration that still had it.
        columns = (BATCH_COLUMNS if adapters is None else ADAPTER_COLUMNS).over(groups)
        self._rows = SequenceRows(2 * max_num_seqs, max_blocks, columns)
        self._forward_pass = ForwardPass(model, storage, self._rows, device, max_model_len)
        if adapters is not None:
            adapters.install(self._forward_pass.adapter_step)
        self._sampling_rows = SamplingRows(self._rows, vocab_size, device)
        self._drawn = drawn = DrawnIds(self._rows.num_rows, device)
        shard = _vocab_shard(model)
        self._graph_step = GraphStep(model, self._forward_pass, drawn, shard, deterministic=all_deterministic)
        self._asked_step = GraphStep(model, self._forward_pass, drawn, shard, deterministic=True)
        self._graphs: StepGraphs | None = None
        self._adapter_graphs: StepGraphs | None = None
        self._asked_graphs: StepGraphs | None = None
        self._eager = EagerStep(
            model, self._forward_pass, self._rows, self._sampling_rows, drawn, vocab_size, device, shard
        )
        self._ways: Sequence[StepWay] = (self._eager,)
        self._stage_step: StageStep | None = None
        self._hand_over: HandOver | None = None
        if model.stage.size > 1:
            self._hand_over = HandOver(model.stage, model.hidden_size, model.dtype, device)
        if self._hand_over is not None and not is_last(model.stage):
            self._stage_step = StageStep(self._forward_pass, self._rows, drawn, self._hand_over, device)
            self._ways = (self._stage_step,)
        self._turns = StagingTurns(device)

    @torch.inference_mode()
    def launch(self, plan: IterationPlan) -> LaunchedIteration | LaunchedShare:
        """Release, load adapters, copy, compute, sample; ids are aligned with the plan's samples. Transfers run beside
        that and are launched last, so that the device computes meanwhile. Or layer steps of a training."""
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
        # Before all that may fail (see HandOver).
        received = None if self._hand_over is None else self._hand_over.receive(plan.num_scheduled_tokens)
        turn, is_all = self._turns.take(), self.all_deterministic
        step = Step(plan, turn, self._rows, self._block_size, received, all_deterministic=is_all)
        outputs = next(way for way in self._ways if way.takes(step)).compute(step)
        return outputs if self._hand_over is None else replace(outputs, compute_s=self._hand_over.compute_s())

    @property
    def batches_deterministic(self) -> bool:
        """Whether a step whose rows have the bits that they have alone is computed at once, as others are; else its
        tokens are computed one after the other."""
        return self._forward_pass.row_invariance.can_be_at_once

    def note_drawn(self, rows: Int64Array, token_ids: Int64Array) -> None:
        """The last stage has drawn these ids for these rows, which the next plans compute. On a stage before it."""
        assert self._stage_step is not None
        self._stage_step.note_drawn(rows, token_ids)

    @property
    def padded_size(self) -> Callable[[int, int, int], GraphSize | None] | None:
        """(num_tokens, num_decodes, num_prompts) of a step -> the size that it is padded to, None if it is not. None
        if no step is padded."""
        return None if self._graphs is None else self._graphs.padded_size

    def recent_steps(self, *, adapters: bool = False, asked: bool = False) -> Collection[PaddedStep]:
        """The last steps, with or without adapters, or that were asked to be deterministic, that were replayed, or
        could not be for want of a size."""
        graphs = self._graphs_of(adapters=adapters, asked=asked)
        return () if graphs is None else graphs.recent_steps

    def _graphs_of(self, *, adapters: bool, asked: bool) -> StepGraphs | None:
        return self._asked_graphs if asked else self._adapter_graphs if adapters else self._graphs

    @property
    def captures_asked(self) -> bool:
        """Whether there are to be graphs for steps that are deterministic because somebody asks."""
        return self.batches_deterministic and not self.all_deterministic

    @torch.inference_mode()
    def capture_graphs(
        self,
        sizes: Sequence[GraphSize],
        must_give_up: Callable[[], bool] | None = None,
        *,
        adapters: bool = False,
        asked: bool = False,
    ) -> None:
        """Steps, with or without adapters, or that are asked to be deterministic, that fit one of these sizes are
        replayed from now on; but no steps that are computed token by token. On a GPU, while no iteration runs; may be
        called again for more sizes. Raises GivenUpError soon after `must_give_up` has become true."""
        if self.all_deterministic and not self.batches_deterministic:
            return
        if self._graphs is None:
            place = GraphPlace(self._rows, self.device)
            self._graphs = StepGraphs(self._graph_step, self._rows, self._block_size, place)
            all_graphs = [self._graphs]
            if self.adapters is not None:
                num_adapters = self.adapters.num_slots
                with_adapters = StepGraphs(
                    self._graph_step, self._rows, self._block_size, place, num_adapters=num_adapters
                )
                self._adapter_graphs = with_adapters
                all_graphs.append(self._adapter_graphs)
            if self.captures_asked:
                self._asked_graphs = StepGraphs(self._asked_step, self._rows, self._block_size, place)
                all_graphs.append(self._asked_graphs)
            self._ways = (*self._graph_ways(all_graphs), self._stage_step or self._eager)
        graphs = self._graphs_of(adapters=adapters, asked=asked)
        assert graphs is not None
        with self._forward_pass.given_up_when(must_give_up):
            graphs.capture(sizes)

    def _graph_ways(self, all_graphs: Sequence[StepGraphs]) -> Sequence[StepWay]:
        """First those that need nothing of a step's columns, whichever graphs they replay."""
        by_graphs = [self._ways_of(graphs) for graphs in all_graphs]
        return [*(again for again, *_ in by_graphs), *(way for _, *rest in by_graphs for way in rest)]

    def _ways_of(self, graphs: StepGraphs) -> tuple[StepWay, ...]:
        if self._stage_step is not None:
            return self._stage_step.graph_ways(graphs, self._block_size)
        decodes = DecodeGraph(graphs, self._rows, self._block_size)
        return SameDecodesAgain(graphs), decodes, MixedGraph(graphs), DecodeGraphLogits(decodes, self._eager)

    def record_steps(self) -> None:
        """Decode steps that consist of compiled loops are recorded and replayed from now on. On a CPU."""
        loops = loops_for(self.storage.blocks)
        if loops is not None:
            recorded = RecordedSteps(
                self._model,
                self._forward_pass,
                loops.new_recorder(),
                self._rows,
                self._block_size,
                self._eager,
                self._drawn,
                0 if self.adapters is None else self.adapters.num_slots,
            )
            self._ways = (RecordedDecodesAgain(recorded), recorded, self._eager)

    @torch.inference_mode()
    def compute_padding(self, size: GraphSize, *, adapters: bool = False) -> None:
        """The step that a graph of this size holds, of padding alone, kernel by kernel. adapters: for steps with
        adapters."""
        table = DeviceBlockTable(self._rows, self.device)
        num_adapters = self.adapters.num_slots if adapters and self.adapters is not None else 0
        inputs = self._graph_step.inputs(size, table.tensor, self._block_size, self._rows.columns, num_adapters)
        self._graph_step.whole(inputs.step)


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
        except RuntimeError:  # the device's; `wait` has it too
            return True

    def wait(self) -> IterationResult:
        """The drawn ids, what else was asked for, and the transfers that have finished by then."""
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


def _vocab_shard(model: CausalLM) -> VocabShard | None:
    """None if one rank has all logits, or this one has none."""
    parallel = model.parallel
    if parallel.size == 1 or not is_last(model.stage):
        return None
    return VocabShard(model.head.ids, model.head.vocab_size, parallel.all_gather)
