"""Ways to compute a step with a CUDA graph (step_ways.py)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from service.runner.cuda_graphs import StepGraphs, drawn
from service.runner.device_copies import to_device
from service.runner.eager_step import EagerStep
from service.runner.graph_sizes import GraphSize, PaddedStep
from service.runner.graph_step import StepOutputs
from service.runner.lane_decodes import LastDecodes
from service.runner.selective_batching import FlatBatch, decode_columns, flat_order
from service.runner.sequence_rows import SequenceRows
from service.runner.step import Outputs, Step


class DecodeGraph:
    """A StepWay: sequences that compute one token and draw one id each."""

    def __init__(self, graphs: StepGraphs, rows: SequenceRows, block_size: int) -> None:
        self._graphs = graphs
        self._rows = rows
        self._block_size = block_size

    def has_room_for(self, step: Step) -> bool:
        # Columns first: they may add rows, and no graph's block table has those.
        return (
            step.columns.is_decode
            and _is_kind_of(self._graphs, step)
            and self._size_for(len(step.columns.rows)) is not None
            and self._graphs.table.is_complete
        )

    def takes(self, step: Step) -> bool:
        return self.has_room_for(step) and step.is_plain

    def compute(self, step: Step) -> Outputs:
        plan = step.plan
        return drawn(self.replay(step, None if plan.scheduled else plan.decodes.version), plan.num_sequences, step)

    def replay(self, step: Step, version: int | None = None) -> StepOutputs:
        """Outputs are in the order of the decodes. version: given if the decodes may be replayed again."""
        graphs, num_seqs = self._graphs, len(step.columns.rows)
        columns = decode_columns(step.columns, self._rows, self._block_size)
        size = self._size_for(num_seqs)
        assert size is not None
        captured, padded = graphs.sizes.decodes[size], PaddedStep(num_seqs, num_seqs, 0, size)
        graphs.sizes.recent_steps.append(padded)
        decodes = LastDecodes(padded, captured, self._order_of(step), graphs.step.has_filters(columns))
        graphs.hold(decodes, version)
        captured.inputs.fill_decodes(columns, graphs.table.take_changes(captured.inputs.most_changes), version)
        return graphs.run(step, captured, num_seqs, decodes.order, has_filters=decodes.has_filters)

    def _size_for(self, num_seqs: int) -> GraphSize | None:
        return self._graphs.sizes.padded_size(num_seqs, num_seqs, 0)

    def _order_of(self, step: Step) -> Tensor | None:
        """On a pipeline stage, the place of each decode in the flat batch."""
        if not self._graphs.step.is_stage:
            return None
        return to_device({"order": flat_order(step.columns)}, self._graphs.table.tensor.device)["order"]


class MixedGraph:
    """A StepWay: decodes and prompts."""

    def __init__(self, graphs: StepGraphs) -> None:
        self._graphs = graphs

    def takes(self, step: Step) -> bool:
        return step.is_plain and _is_kind_of(self._graphs, step) and self._has_room_for(step.batch)

    def compute(self, step: Step) -> Outputs:
        return drawn(self.replay(step), step.batch.num_draws, step)

    def replay(self, step: Step) -> StepOutputs:
        """Outputs have one row per draw in the plan's order; where another stage draws, one row per token in the
        batch's order."""
        batch, graphs = step.batch, self._graphs
        size = graphs.sizes.padded(batch).size
        assert size is not None
        captured = graphs.sizes.mixed[size]
        captured.inputs.fill(batch, graphs.table.take_changes(captured.inputs.most_changes))
        return graphs.run(step, captured, batch.num_draws, has_filters=graphs.step.has_filters(batch.draws))

    def _has_room_for(self, batch: FlatBatch) -> bool:
        """Whether some graph has room for the batch's decodes, prompts and draws without too much padding."""
        padded = self._graphs.sizes.padded(batch)
        self._graphs.sizes.recent_steps.append(padded)
        return self._graphs.table.is_complete and padded.size is not None


class DecodeGraphLogits:
    """Like DecodeGraph, for draws that a graph cannot make: it computes the logits, and the draws are made kernel by
    kernel."""

    def __init__(self, decode_graph: DecodeGraph, eager: EagerStep) -> None:
        self._decode_graph = decode_graph
        self._eager = eager

    def takes(self, step: Step) -> bool:
        return self._decode_graph.has_room_for(step)

    def compute(self, step: Step) -> Outputs:
        tensors = self._eager.begin(step)
        logits = self._decode_graph.replay(step).logits

        def logits_of(first: int, stop: int) -> Tensor:
            return logits[first:stop].clone()  # drawing overwrites them, and a second attempt starts from the graph's

        return replace(self._eager.draw(logits_of, step, tensors), is_replayed=True)


def _is_kind_of(graphs: StepGraphs, step: Step) -> bool:
    return step.has_adapters is graphs.adapters and step.is_deterministic is graphs.step.deterministic
