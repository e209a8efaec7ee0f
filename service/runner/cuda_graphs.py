"""Full CUDA graphs of a step: one launch instead of hundreds.

A graph replays the kernels of one step, from the embedding to the drawn ids, with the addresses that it was captured
with. So there is one graph for each of a few padded sizes (graph_sizes.py), of decodes alone and of decodes beside some
tokens of prompts. One of many tokens ends with the hidden states of the rows that draw, and the few kernels behind them
are launched one by one, for those rows that are no padding.

Inputs lie at fixed places, also on the host, from where the graph itself fetches them; rows that are padding have no
context, write nothing and draw what nobody reads. All graphs share one memory pool, and the largest is captured first,
so that the others fit into what it needed. A step whose size was not captured, yet or ever, runs in the next larger
graph or kernel by kernel.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from service.core.iteration import ScheduledDecodes
from service.runner.batch_columns import Array, Int64Array
from service.runner.captured_sizes import CapturedSizes, GraphPlace
from service.runner.captured_step import CapturedStep
from service.runner.device_copies import to_device
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import PaddedStep
from service.runner.graph_step import GraphStep, StepOutputs
from service.runner.selective_batching import FlatBatch, has_filters
from service.runner.sequence_rows import SequenceRows
from service.runner.step_ways import Outputs, PendingTokenIds, Step


class StepGraphs:
    """Can it be replayed? Then replay it. Engine thread.

    num_adapters: that a step may have, of graphs of steps with adapters; 0: of steps without. num_lanes: of which the
    last decodes are known, to be replayed again (service/scheduler/lanes.py). sizes: of the graphs that there are.
    """

    def __init__(
        self,
        step: GraphStep,
        rows: SequenceRows,
        block_size: int,
        place: GraphPlace,
        *,
        num_adapters: int = 0,
        num_lanes: int = 1,
    ) -> None:
        self.adapters = num_adapters > 0
        self.deterministic = step.deterministic
        self.is_stage = step.is_stage
        self._step = step
        self._rows = rows
        self._block_size = block_size
        self._table = place.table
        self.sizes = CapturedSizes(step, rows, block_size, place, num_adapters)
        self._num_lanes = num_lanes
        self._last_decodes: OrderedDict[int, _LastDecodes] = OrderedDict()  # by their version
        self._flat_order: Tensor | None = None

    def has_room_for(self, num_decodes: int) -> bool:
        """Whether so many sequences that compute one token each, and draw one id, can be replayed."""
        return self.sizes.padded_size(num_decodes, num_decodes, 0) is not None and self._table.is_complete

    def replay(
        self,
        step: Step,
        decodes: Mapping[str, Array],
        version: int | None = None,
        order: Int64Array | None = None,
    ) -> StepOutputs:
        """Replay decodes that it `has_room_for`; the outputs are in their order. decodes: by `decode_columns`. version:
        given if they are a plan's ScheduledDecodes, which may be replayed again. order: their `flat_order`, on a
        stage."""
        num_seqs = len(decodes["decode_rows"])
        size = self.sizes.padded_size(num_seqs, num_seqs, 0)
        assert size is not None
        captured, padded = self.sizes.decodes[size], PaddedStep(num_seqs, num_seqs, 0, size)
        self.sizes.recent_steps.append(padded)
        has_filters = self._has_filters(decodes)
        if order is not None:
            self._flat_order = to_device({"order": order}, self._table.tensor.device)["order"]
        self._put_aside(captured.inputs)
        if version is not None:
            self._last_decodes[version] = _LastDecodes(padded, captured, self._flat_order, has_filters)
            if len(self._last_decodes) > self._num_lanes:
                self._last_decodes.popitem(last=False)
        captured.inputs.fill_decodes(decodes, self._table.take_changes(captured.inputs.most_changes), version)
        return self._run(step, captured, num_seqs, self._flat_order, has_filters=has_filters)

    def can_replay_again(self, decodes: ScheduledDecodes) -> bool:
        """Whether the last decodes that were replayed, of some lane, are these, one token before."""
        last = self._last_decodes.get(decodes.version)
        return last is not None and self._table.is_complete and last.captured.inputs.can_advance(decodes, last.aside)

    def replay_again(self, step: Step) -> StepOutputs:
        """Replay a step of decodes for which it `can_replay_again`."""
        decodes = step.plan.decodes
        last = self._last_decodes[decodes.version]
        self._last_decodes.move_to_end(decodes.version)
        inputs, self._flat_order = last.captured.inputs, last.order
        self.sizes.recent_steps.append(last.padded)
        self._rows.grow_tables(decodes)
        if inputs.version != decodes.version:
            assert last.aside is not None
            self._put_aside(inputs)
            inputs.bring_back(last.aside, decodes.version)
            last.aside = None
        inputs.advance(decodes, self._rows, self._block_size, self._table.take_changes(inputs.most_changes))
        return self._run(step, last.captured, len(decodes), self._flat_order, has_filters=last.has_filters)

    def _put_aside(self, inputs: GraphInputs) -> None:
        """Other decodes take their place there: of another lane, whose turn comes again."""
        held = None if self._num_lanes == 1 or inputs.version is None else self._last_decodes.get(inputs.version)
        if held is not None and held.captured.inputs is inputs:
            held.aside = inputs.aside()

    def handed_over(self, outputs: StepOutputs) -> Tensor:
        """Of the last decodes that were replayed what goes to the next stage, of its own memory: in the order of the
        flat batch, which all stages share, however each computes it."""
        assert self._flat_order is not None
        return outputs.logits.index_select(0, self._flat_order)

    def can_replay_mixed(self, batch: FlatBatch) -> bool:
        """Whether some graph has room for the batch's decodes, prompts and draws, and not far too much."""
        padded = self.sizes.padded(batch)
        self.sizes.recent_steps.append(padded)
        return self._table.is_complete and padded.size is not None

    def replay_mixed(self, step: Step) -> StepOutputs:
        """Replay a step whose batch `can_replay_mixed`; the outputs have one row a draw, in the plan's order; where
        another stage draws, one a token, in the batch's."""
        batch = step.batch
        size = self.sizes.padded(batch).size
        assert size is not None
        captured = self.sizes.mixed[size]
        captured.inputs.fill(batch, self._table.take_changes(captured.inputs.most_changes))
        return self._run(step, captured, batch.num_draws, has_filters=self._has_filters(batch.draws))

    def _has_filters(self, draws: Mapping[str, Array]) -> bool:
        """Of these columns; asked where the draws are sharded alone."""
        return self._step.is_sharded and has_filters(draws)

    def _run(
        self, step: Step, captured: CapturedStep, num_draws: int, order: Tensor | None = None, *, has_filters: bool
    ) -> StepOutputs:
        """has_filters: as `GraphStep.draw` takes it. num_draws: how many are wanted. Of what a graph draws nothing is
        cut off, as that would cost the host two more calls. order: of the places at which what was received belongs;
        None: as it lies."""
        if step.turn is not None:
            step.turn.begins()
        received, there = step.received, captured.inputs.step.received
        if received is not None and there is not None:
            if order is None:
                there[: len(received)].copy_(received)
            else:
                there.index_copy_(0, order, received)
        outputs = captured.replay(has_filters=has_filters)
        if isinstance(outputs, StepOutputs):
            return outputs
        return self._step.draw(outputs, captured.inputs.step, num_draws, has_filters=has_filters)


@dataclass(slots=True)
class _LastDecodes:
    """Of one version, and the graph that has computed them. order: as of `replay`. has_filters: as of `_run`. aside:
    their columns, where the graph's inputs hold others by now."""

    padded: PaddedStep
    captured: CapturedStep
    order: Tensor | None
    has_filters: bool
    aside: Mapping[str, Array] | None = None


class SameDecodesAgain:
    """The decodes that a graph has computed last, alone, one token further: what it holds is advanced in place."""

    def __init__(self, graphs: StepGraphs) -> None:
        self._graphs = graphs

    def takes(self, step: Step) -> bool:
        plan = step.plan
        return not plan.scheduled and plan.masks is None and self._graphs.can_replay_again(plan.decodes)

    def compute(self, step: Step) -> Outputs:
        return drawn(self._graphs.replay_again(step), len(step.plan.decodes), step)


def drawn(outputs: StepOutputs, num_draws: int, step: Step) -> Outputs:
    """A graph's outputs, of which so many draws are the step's."""
    return Outputs(PendingTokenIds(outputs.token_ids, num_draws, step.turn), is_replayed=True)
