"""Steps by CUDA graphs (cuda_graphs.py): the ways that cost the host least."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from service.runner.cuda_graphs import StepGraphs, StepOutputs
from service.runner.eager_step import EagerStep
from service.runner.launched_iteration import Outputs
from service.runner.selective_batching import decode_columns
from service.runner.sequence_rows import SequenceRows
from service.runner.staging import PendingTokenIds
from service.runner.step_ways import Step


class SameDecodesAgain:
    """The decodes that a graph has computed last, alone, one token further: what it holds is advanced in place."""

    def __init__(self, graphs: StepGraphs) -> None:
        self._graphs = graphs

    def takes(self, step: Step) -> bool:
        plan = step.plan
        return not plan.scheduled and plan.masks is None and self._graphs.can_replay_again(plan.decodes)

    def compute(self, step: Step) -> Outputs:
        return _drawn(self._graphs.replay_again(step.plan.decodes, step.turn), len(step.plan.decodes), step)


class DecodeGraph:
    """Sequences that compute one token and draw one id each."""

    def __init__(self, graphs: StepGraphs, rows: SequenceRows, block_size: int) -> None:
        self._graphs = graphs
        self._rows = rows
        self._block_size = block_size

    def has_room_for(self, step: Step) -> bool:
        # The columns first: rows that they add are in no graph.
        return (
            step.columns.is_decode
            and _is_kind_of(self._graphs, step)
            and self._graphs.has_room_for(len(step.columns.rows))
        )

    def takes(self, step: Step) -> bool:
        return self.has_room_for(step) and step.is_plain

    def compute(self, step: Step) -> Outputs:
        plan = step.plan
        return _drawn(self.replay(step, None if plan.scheduled else plan.decodes.version), plan.num_sequences, step)

    def replay(self, step: Step, version: int | None = None) -> StepOutputs:
        """version: of the decodes that may be replayed again."""
        return self._graphs.replay(decode_columns(step.columns, self._rows, self._block_size), step.turn, version)


class MixedGraph:
    """Decodes and prompts."""

    def __init__(self, graphs: StepGraphs) -> None:
        self._graphs = graphs

    def takes(self, step: Step) -> bool:
        return step.is_plain and _is_kind_of(self._graphs, step) and self._graphs.can_replay_mixed(step.batch)

    def compute(self, step: Step) -> Outputs:
        return _drawn(self._graphs.replay_mixed(step.batch, step.turn), step.batch.num_draws, step)


class DecodeGraphLogits:
    """As DecodeGraph, where draws ask for more than the graph can do: it gives the logits, and they are drawn from
    kernel by kernel."""

    def __init__(self, decode_graph: DecodeGraph, eager: EagerStep) -> None:
        self._decode_graph = decode_graph
        self._eager = eager

    def takes(self, step: Step) -> bool:
        return self._decode_graph.has_room_for(step)

    def compute(self, step: Step) -> Outputs:
        tensors = self._eager.begin(step)
        logits = self._decode_graph.replay(step).logits

        def logits_of(first: int, stop: int) -> Tensor:
            return logits[first:stop].clone()  # the graph's are kept as they are: drawing again begins with them

        return replace(self._eager.draw(logits_of, step, tensors), is_replayed=True)


def _is_kind_of(graphs: StepGraphs, step: Step) -> bool:
    return step.has_adapters is graphs.adapters and step.is_deterministic is graphs.deterministic


def _drawn(outputs: StepOutputs, num_draws: int, step: Step) -> Outputs:
    return Outputs(PendingTokenIds(outputs.token_ids, num_draws, step.turn), is_replayed=True)
