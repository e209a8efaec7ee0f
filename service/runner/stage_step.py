"""The step of a pipeline stage before the last: it computes its layers and draws nothing (ORCA's inter-layer
parallelism)."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from service.layers.pipeline_stage import PipelineStage, is_first
from service.runner.batch_columns import Int64Array
from service.runner.cuda_graphs import StepGraphs
from service.runner.device_copies import to_device
from service.runner.drawn_ids import DrawnIds
from service.runner.forward_pass import ForwardPass
from service.runner.graph_step import StepOutputs
from service.runner.graph_ways import DecodeGraph, MixedGraph
from service.runner.sequence_rows import SequenceRows
from service.runner.step import Outputs, PendingTokenIds, Step
from service.runner.step_ways import StepWay


class HandOver:
    """Hidden states between stages, [tokens, hidden_size]. For each plan that computes, exactly one tensor comes in and
    one goes out, whatever fails in between. So the stages stay in step, and no stage receives another plan's tensor."""

    def __init__(self, stage: PipelineStage, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._stage = stage
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device
        self._received_s = 0.0

    def receive(self, num_tokens: int) -> Tensor | None:
        """None on the first stage."""
        hidden = None
        if not is_first(self._stage):
            hidden = torch.empty(num_tokens, self._hidden_size, dtype=self._dtype, device=self._device)
            self._stage.receive(hidden)
        self._received_s = time.perf_counter()
        return hidden

    def compute_s(self) -> float | None:
        """Seconds since `receive`, if the host computes; None on a GPU, where the device's clock measures."""
        return None if self._device.type == "cuda" else time.perf_counter() - self._received_s

    def send(self, hidden: Tensor) -> None:
        self._stage.send(hidden)

    def send_nothing(self, num_tokens: int) -> None:
        """The step failed here: send NaN in its place, from which nothing can be drawn."""
        shape = num_tokens, self._hidden_size
        self._stage.send(torch.full(shape, math.nan, dtype=self._dtype, device=self._device))


class StageStep:
    """A StepWay that takes every plan, kernel by kernel. drawn: on the first stage, the ids to embed."""

    def __init__(
        self, forward_pass: ForwardPass, rows: SequenceRows, drawn: DrawnIds, hand_over: HandOver, device: torch.device
    ) -> None:
        self._forward_pass = forward_pass
        self._rows = rows
        self._drawn = drawn
        self._hand_over = hand_over
        self._device = device

    def takes(self, step: Step) -> bool:
        return True

    def compute(self, step: Step) -> Outputs:
        """Hands over the hidden states; NaN if the step fails."""
        try:
            hidden, tensors = self._computed(step)
        except BaseException:
            self._hand_over.send_nothing(step.plan.num_scheduled_tokens)
            raise
        self._hand_over.send(hidden)
        return Outputs(PendingTokenIds(tensors["token_ids"], 0, step.turn))

    def graph_ways(self, graphs: StepGraphs, block_size: int) -> tuple[StepWay, ...]:
        """The ways to try before this one if there are graphs."""
        return (StageGraph(graphs, self._rows, block_size, self._hand_over),)

    def note_drawn(self, rows: Int64Array, token_ids: Int64Array) -> None:
        """The last stage has drawn these ids for these rows."""
        self._drawn.grow(self._rows.num_rows)
        there = to_device({"rows": rows, "token_ids": token_ids}, self._device)
        self._drawn.note(there["rows"], there["token_ids"])

    def _computed(self, step: Step) -> tuple[Tensor, dict[str, Tensor]]:
        self._forward_pass.row_invariance.want(step.is_deterministic)
        tensors = step.begin(self._device)
        if step.batch.has_pending:
            self._drawn.grow(self._rows.num_rows)
            self._drawn.fill_in(tensors["token_ids"], tensors["rows"][: step.batch.num_decode])
        if step.received is not None:
            tensors["received"] = step.received
        return self._forward_pass.of_all_tokens(step.columns, step.batch, tensors), tensors


class StageGraph:
    """A StepWay that replays graphs: decodes, whatever their draws ask for, because another stage draws; and decodes
    beside prompts."""

    def __init__(self, graphs: StepGraphs, rows: SequenceRows, block_size: int, hand_over: HandOver) -> None:
        self._graphs = graphs
        self._decodes, self._mixed = DecodeGraph(graphs, rows, block_size), MixedGraph(graphs)
        self._hand_over = hand_over

    def takes(self, step: Step) -> bool:
        return self._is_again(step) or self._decodes.has_room_for(step) or self._mixed.takes(step)

    def compute(self, step: Step) -> Outputs:
        """Hands over the hidden states; NaN if the step fails."""
        plan = step.plan
        try:
            if self._is_again(step):
                outputs = self._graphs.replay_again(step)
                hidden = self._in_flat_order(outputs)
            elif self._decodes.has_room_for(step):
                outputs = self._decodes.replay(step, None if plan.scheduled else plan.decodes.version)
                hidden = self._in_flat_order(outputs)
            else:
                outputs = self._mixed.replay(step)
                hidden = outputs.logits[: step.batch.num_tokens].clone()  # the next replay writes there
        except BaseException:
            self._hand_over.send_nothing(plan.num_scheduled_tokens)
            raise
        self._hand_over.send(hidden)
        return Outputs(PendingTokenIds(outputs.token_ids, 0, step.turn), is_replayed=True)

    def _in_flat_order(self, outputs: StepOutputs) -> Tensor:
        """What the last replayed decodes hand over, in memory of its own: hidden states in the order of the flat batch,
        which all stages share, however each computes it."""
        assert self._graphs.flat_order is not None
        return outputs.logits.index_select(0, self._graphs.flat_order)

    def _is_again(self, step: Step) -> bool:
        return not step.plan.scheduled and self._graphs.can_replay_again(step.plan.decodes)
