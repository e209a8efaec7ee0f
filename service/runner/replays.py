"""The ways to compute a step: kernel by kernel, by CUDA graphs, or by recordings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import torch

from kernels.cpu_loops import loops_for
from service.layers.pipeline_stage import is_last
from service.models.causal_lm import CausalLM
from service.runner.captured_sizes import GraphPlace
from service.runner.cuda_graphs import SameDecodesAgain, StepGraphs
from service.runner.drawn_ids import DrawnIds
from service.runner.eager_step import EagerStep
from service.runner.forward_pass import ForwardPass
from service.runner.graph_sizes import GraphSize, PaddedStep
from service.runner.graph_step import GraphStep
from service.runner.graph_ways import DecodeGraph, DecodeGraphLogits, MixedGraph
from service.runner.kv_storage import KvStorage
from service.runner.recorded_steps import RecordedSteps
from service.runner.sampling_rows import SamplingRows
from service.runner.sequence_rows import DeviceBlockTable, SequenceRows
from service.runner.stage_step import HandOver, StageStep
from service.runner.step_ways import StepWay
from service.sampling.vocab_shard import VocabShard


class TellsCaptures(Protocol):
    def __call__(
        self, sizes: Sequence[GraphSize], *, adapters: bool, asked: bool
    ) -> AbstractContextManager[None, bool | None]: ...


class Replays:
    """CUDA graphs of three kinds: for steps without adapters, for steps with adapters, and for steps that a sequence
    asks to be deterministic. On a CPU, recordings. Engine thread only.

    num_adapters: how many adapters a step may use. all_deterministic: as in ModelRunner.

    ways: the first one that takes a step computes it; the last one takes any step. hand_over: of a pipeline stage; None
    if there is only one. stage_step: computes the steps of a stage that does not draw; None on the last stage.
    """

    def __init__(
        self,
        model: CausalLM,
        storage: KvStorage,
        forward_pass: ForwardPass,
        rows: SequenceRows,
        sampling_rows: SamplingRows,
        vocab_size: int,
        device: torch.device,
        num_adapters: int,
        *,
        all_deterministic: bool,
    ) -> None:
        self._model = model
        self._storage = storage
        self._block_size = storage.layout.block_size
        self._forward_pass = forward_pass
        self._rows = rows
        self._device = device
        self._num_adapters = num_adapters
        self._all_deterministic = all_deterministic
        self._drawn = drawn = DrawnIds(rows.num_rows, device)
        shard = _vocab_shard(model)
        self._eager = EagerStep(model, forward_pass, rows, sampling_rows, drawn, vocab_size, device, shard)
        self.hand_over: HandOver | None = None
        self.stage_step: StageStep | None = None
        if model.stage.size > 1:
            self.hand_over = HandOver(model.stage, model.hidden_size, model.dtype, device)
            if not is_last(model.stage):
                self.stage_step = StageStep(forward_pass, rows, drawn, self.hand_over, device)
        self._graph_step = GraphStep(model, forward_pass, drawn, shard, deterministic=all_deterministic)
        self._asked_step = GraphStep(model, forward_pass, drawn, shard, deterministic=True)
        self._graphs: StepGraphs | None = None
        self._adapter_graphs: StepGraphs | None = None
        self._asked_graphs: StepGraphs | None = None
        self._unreplayed: StepWay = self.stage_step or self._eager
        self._telling: TellsCaptures | None = None
        self.ways: Sequence[StepWay] = (self._unreplayed,)

    @property
    def padded_size(self) -> Callable[[int, int, int], GraphSize | None] | None:
        """A function (num_tokens, num_decodes, num_prompts) of a step -> the size it is padded to, or None if it is not
        padded. None if no step is padded."""
        return None if self._graphs is None else self._graphs.sizes.padded_size

    def recent_steps(self, *, adapters: bool = False, asked: bool = False) -> Collection[PaddedStep]:
        """The last steps that were replayed, or could not be because no size fits: those without adapters, with
        `adapters`, or with `asked` those that a sequence asked to be deterministic."""
        graphs = self._graphs_of(adapters=adapters, asked=asked)
        return () if graphs is None else graphs.sizes.recent_steps

    @property
    def batches_deterministic(self) -> bool:
        """Whether deterministic rows (see `ModelRunner`) are computed as one batch, as other rows are. If not, the
        tokens of such a step are computed one by one."""
        return self._forward_pass.row_invariance.can_be_at_once

    @property
    def captures_asked(self) -> bool:
        """Whether there are graphs for steps that are deterministic because a sequence asks for it."""
        return self.batches_deterministic and not self._all_deterministic

    @torch.inference_mode()
    def capture(
        self,
        sizes: Sequence[GraphSize],
        must_give_up: Callable[[], bool] | None = None,
        *,
        adapters: bool = False,
        asked: bool = False,
    ) -> None:
        """From now on, replay steps that fit one of these sizes: steps without adapters, with `adapters`, or with
        `asked` those that are deterministic because a sequence asks for it. Steps that are computed token by token are
        never replayed.

        On a GPU, while no iteration runs. May be called again for more sizes. Raises GivenUpError soon after
        `must_give_up` has become true.
        """
        if self._all_deterministic and not self.batches_deterministic:
            return
        if self._graphs is None:
            self._make_graphs()
        graphs = self._graphs_of(adapters=adapters, asked=asked)
        assert graphs is not None
        if self._telling is None:
            with self._forward_pass.given_up_when(must_give_up):
                graphs.sizes.capture(sizes)
        else:
            with self._telling(sizes, adapters=adapters, asked=asked):
                graphs.sizes.capture(sizes)

    def tell_captures(self, telling: TellsCaptures) -> None:
        """From now on other ranks capture what this one captures, within `telling`. No rank can stop alone, so captures
        are never given up any more."""
        self._telling = telling

    def record(self) -> None:
        """On a CPU: from now on, record and replay decode steps that consist of compiled loops only."""
        loops = loops_for(self._storage.blocks)
        if loops is not None:
            recorded = RecordedSteps(
                self._model,
                self._forward_pass,
                loops.new_recorder(),
                self._rows,
                self._block_size,
                self._eager,
                self._drawn,
                self._num_adapters,
            )
            self.ways = (recorded.again, recorded, self._eager)

    @torch.inference_mode()
    def compute_padding(self, size: GraphSize, *, adapters: bool = False) -> None:
        """Compute the step of a graph of this size, on nothing but padding, kernel by kernel. adapters: the step with
        adapters."""
        table, num_adapters = DeviceBlockTable(self._rows, self._device), self._num_adapters if adapters else 0
        inputs = self._graph_step.inputs(size, table.tensor, self._block_size, self._rows.columns, num_adapters)
        self._graph_step.whole(inputs.step)

    def _make_graphs(self) -> None:
        where = self._rows, self._block_size, GraphPlace(self._rows, self._device)
        graphs = partial(StepGraphs, num_lanes=self._model.stage.size)
        self._graphs = graphs(self._graph_step, *where)
        all_graphs = [self._graphs]
        if self._num_adapters:
            self._adapter_graphs = graphs(self._graph_step, *where, num_adapters=self._num_adapters)
            all_graphs.append(self._adapter_graphs)
        if self.captures_asked:
            self._asked_graphs = graphs(self._asked_step, *where)
            all_graphs.append(self._asked_graphs)
        self.ways = (*self._graph_ways(all_graphs), self._unreplayed)

    def _graphs_of(self, *, adapters: bool, asked: bool) -> StepGraphs | None:
        return self._asked_graphs if asked else self._adapter_graphs if adapters else self._graphs

    def _graph_ways(self, all_graphs: Sequence[StepGraphs]) -> Sequence[StepWay]:
        """First the ways that do not need a step's columns, of all graphs; then the others."""
        by_graphs = [self._ways_of(graphs) for graphs in all_graphs]
        return [*(again for again, *_ in by_graphs), *(way for _, *rest in by_graphs for way in rest)]

    def _ways_of(self, graphs: StepGraphs) -> tuple[StepWay, ...]:
        if self.stage_step is not None:
            return self.stage_step.graph_ways(graphs, self._block_size)
        decodes = DecodeGraph(graphs, self._rows, self._block_size)
        return SameDecodesAgain(graphs), decodes, MixedGraph(graphs), DecodeGraphLogits(decodes, self._eager)


def _vocab_shard(model: CausalLM) -> VocabShard | None:
    """None if one rank has all logits, or this rank has none."""
    parallel = model.parallel
    if parallel.size == 1 or not is_last(model.stage):
        return None
    return VocabShard(model.head.ids, model.head.vocab_size, parallel.all_gather)
