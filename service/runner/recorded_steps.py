"""A CPU's decode steps, recorded for each of a few numbers of rows and replayed: what CUDA graphs are on a GPU.

A replay runs the loops of all layers in one parallel region (kernels/loops/recording.py), without Python, torch, or a
wait between two loops. Inputs lie at fixed addresses, as a graph's do; padding rows have no context and write nothing.
The eager step is the plain twin: it computes batches with prompts or with more than FEW_ROWS rows, and models with an
operation that is not a loop.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.cpu_loops import Recorder
from service.layers.packed_weight import FEW_ROWS
from service.models.causal_lm import CausalLM
from service.runner.drawn_ids import DrawnIds
from service.runner.eager_step import EagerStep
from service.runner.forward_pass import ForwardPass
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import GraphSize
from service.runner.recorded_decodes import DrawnStep, RecordedDecodesAgain, RecordedStep
from service.runner.selective_batching import decode_columns
from service.runner.sequence_rows import SequenceRows
from service.runner.step import Outputs, Step
from service.runner.step_inputs import StepForm
from service.sampling.sampler import SamplingBatch, draws_of


class RecordedSteps:
    """A StepWay for decodes that draw one id each. Each number of rows is recorded when a step first has it.

    Plain draws are made here; the same decodes one token further then go to `again`. Other draws are left to the eager
    step. num_adapters: how many adapters a step may use.
    """

    def __init__(
        self,
        model: CausalLM,
        forward_pass: ForwardPass,
        recorder: Recorder,
        rows: SequenceRows,
        block_size: int,
        eager: EagerStep,
        drawn: DrawnIds,
        num_adapters: int = 0,
    ) -> None:
        self._model = model
        self._forward_pass = forward_pass
        self._recorder = recorder
        self._rows = rows
        self._block_size = block_size
        self._eager = eager
        self._drawn = drawn
        self._num_adapters = num_adapters
        self._block_table = rows.block_table
        self._recorded: dict[_Kind, RecordedStep] = {}
        self._refused: set[bool] = set()
        self.again = RecordedDecodesAgain(rows, block_size, forward_pass.row_invariance)

    def takes(self, step: Step) -> bool:
        num_rows = len(step.columns.rows)
        if num_rows > FEW_ROWS or not step.columns.is_decode:
            return False
        if self._rows.block_table is not self._block_table:  # it has grown
            self._block_table, self.again.last = self._rows.block_table, None
            self._recorded.clear()
        if step.is_deterministic and not self._forward_pass.row_invariance.can_be_at_once:
            return False
        kind = _kind(step)
        if kind not in self._recorded and kind.adapters not in self._refused:
            self._record(kind)
        return kind in self._recorded

    def compute(self, step: Step) -> Outputs:
        recorded, plan, num = self._recorded[_kind(step)], step.plan, len(step.columns.rows)
        self._forward_pass.row_invariance.want(step.is_deterministic)
        self._drawn.grow(self._rows.num_rows)
        columns = decode_columns(step.columns, self._rows, self._block_size)
        if step.is_deterministic or not step.is_plain:  # torch's exp of a row may differ beside others
            recorded.inputs.fill_decodes(columns)
            tensors, hidden = self._eager.begin(step), recorded.replay(self._drawn)[:num]
            return self._eager.draw(lambda first, stop: self._model.compute_logits(hidden[first:stop]), step, tensors)
        recorded.inputs.fill_decodes(columns, version=None if plan.scheduled else plan.decodes.version)
        parameters = recorded.inputs.step.sampling.part(0, num)
        is_greedy = not columns["temperature"].any()
        draw = draws_of(SamplingBatch(parameters.columns, is_greedy))
        last = DrawnStep(recorded, num, draw, self._model, self._drawn)
        self.again.last = last
        return last.compute(step)

    def _record(self, kind: _Kind) -> None:
        self._forward_pass.row_invariance.want(kind.deterministic)
        num_adapters = self._num_adapters if kind.adapters else 0
        size, table, columns = GraphSize(kind.num_rows, kind.num_rows), self._block_table, self._rows.columns
        form = StepForm(all_as_prompts=kind.deterministic)
        inputs = GraphInputs(size, torch.from_numpy(table), self._block_size, columns, num_adapters, form)
        there = inputs.step
        recorded = self._recorder.record(
            lambda: self._forward_pass.compute(there.token_ids, there.positions, there.attention, there.adapters)
        )
        if recorded is None:  # some operation is not a loop
            self._refused.add(kind.adapters)
        else:
            self._recorded[kind] = RecordedStep(inputs, recorded, table)


class _Kind(NamedTuple):
    """num_rows: with padding. adapters: whether any row has one. deterministic: as in `Step.is_deterministic`."""

    num_rows: int
    adapters: bool
    deterministic: bool


def _kind(step: Step) -> _Kind:
    """Its number of rows is the step's, rounded up to a power of two."""
    return _Kind(1 << (len(step.columns.rows) - 1).bit_length(), step.has_adapters, step.is_deterministic)
