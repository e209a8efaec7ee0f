"""A recorded step of decodes, and the way to compute the same decodes one token further (recorded_steps.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from kernels.cpu_loops import RecordedLoops
from service.models.causal_lm import CausalLM
from service.runner.batch_columns import Int32Array
from service.runner.drawn_ids import DrawnIds
from service.runner.graph_inputs import GraphInputs
from service.runner.row_invariance import RowInvariance
from service.runner.sequence_rows import SequenceRows
from service.runner.step import Outputs, PendingTokenIds, Step


class RecordedStep(NamedTuple):
    """The inputs of a step, its recording, and the block table of SequenceRows that the recording reads."""

    inputs: GraphInputs
    recorded: RecordedLoops
    block_table: Int32Array

    def replay(self, drawn: DrawnIds) -> Tensor:
        """Run it on what the inputs hold. Returns hidden [T, hidden_size], padding included; the next replay overwrites
        it."""
        self.inputs.fetch()
        drawn.fill_in(self.inputs.step.token_ids, self.inputs.step.decode_rows)
        return self.recorded.replay()


class DrawnStep(NamedTuple):
    """A recorded step and its `num` plain draws. draw: makes them from logits, by parameters at fixed addresses."""

    recorded: RecordedStep
    num: int
    draw: Callable[[Tensor], Tensor]
    model: CausalLM
    drawn: DrawnIds

    def compute(self, step: Step) -> Outputs:
        logits = self.model.compute_logits(self.recorded.replay(self.drawn)[: self.num])
        token_ids = self.draw(logits)
        self.drawn.note(self.recorded.inputs.step.draw_rows[: self.num], token_ids)
        return Outputs(PendingTokenIds(token_ids, self.num, step.turn))


class RecordedDecodesAgain:
    """A StepWay: the decodes of `last`, alone, one token further. Their inputs are advanced in place. last: the step
    that RecordedSteps computed last; None if there is none to go on from."""

    def __init__(self, rows: SequenceRows, block_size: int, row_invariance: RowInvariance) -> None:
        self._rows = rows
        self._block_size = block_size
        self._row_invariance = row_invariance
        self.last: DrawnStep | None = None

    def takes(self, step: Step) -> bool:
        last, plan = self.last, step.plan
        if last is None or plan.scheduled or plan.masks is not None:
            return False
        if last.recorded.block_table is not self._rows.block_table:  # it has grown
            return False
        return last.recorded.inputs.can_advance(plan.decodes)

    def compute(self, step: Step) -> Outputs:
        assert self.last is not None
        decodes = step.plan.decodes
        self._rows.grow_tables(decodes)
        self.last.recorded.inputs.advance(decodes, self._rows, self._block_size)
        if self._row_invariance.is_wanted:
            self._row_invariance.want(False)
        return self.last.compute(step)
