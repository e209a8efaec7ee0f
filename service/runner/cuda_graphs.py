"""Full CUDA graphs of a step: one launch instead of hundreds.

A graph replays the kernels of one step, from the embedding to the drawn ids, with the addresses it was captured with.
So there is one graph per padded size (graph_sizes.py), of decodes alone and of decodes beside prompt tokens. A graph of
many tokens ends with the hidden states of the rows that draw; the few kernels after that are launched one by one, for
the real rows only.

Inputs lie at fixed addresses, also on the host, from where the graph itself fetches them. Padding rows have no context,
write nothing, and draw ids that nobody reads. All graphs share one memory pool; the largest is captured first, so the
others fit into its memory. A step whose size has no graph, yet or ever, runs in the next larger graph or kernel by
kernel.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from service.core.iteration import ScheduledDecodes
from service.runner.batch_columns import Array
from service.runner.captured_sizes import CapturedSizes, GraphPlace
from service.runner.captured_step import CapturedStep
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import PaddedStep
from service.runner.graph_step import GraphStep, StepOutputs
from service.runner.selective_batching import has_filters
from service.runner.sequence_rows import SequenceRows
from service.runner.step_ways import Outputs, PendingTokenIds, Step


class StepGraphs:
    """Runs graphs, and keeps the decodes that they computed last, to compute them again. Engine thread.

    num_adapters: how many adapters a step may use; 0: these graphs are for steps without adapters. num_lanes: lanes
    whose last decodes are kept (service/scheduler/lanes.py). sizes: the graphs that exist. table: what they read.
    flat_order: that of the last replayed decodes, on a pipeline stage.
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
        self.table = place.table
        self.sizes = CapturedSizes(step, rows, block_size, place, num_adapters)
        self._num_lanes = num_lanes
        self._last_decodes: OrderedDict[int, LastDecodes] = OrderedDict()  # by their version
        self.flat_order: Tensor | None = None

    def hold(self, decodes: LastDecodes, version: int | None) -> None:
        """Call before other decodes than those held are filled into a graph's inputs. version: of their plan's
        ScheduledDecodes, if they may be replayed again."""
        self._put_aside(decodes.captured.inputs)
        self.flat_order = decodes.order
        if version is not None:
            self._last_decodes[version] = decodes
            if len(self._last_decodes) > self._num_lanes:
                self._last_decodes.popitem(last=False)

    def can_replay_again(self, decodes: ScheduledDecodes) -> bool:
        """Whether these are the last decodes replayed for some lane, one token further."""
        last = self._last_decodes.get(decodes.version)
        return last is not None and self.table.is_complete and last.captured.inputs.can_advance(decodes, last.aside)

    def replay_again(self, step: Step) -> StepOutputs:
        """Replay a step whose decodes it `can_replay_again`."""
        decodes = step.plan.decodes
        last = self._last_decodes[decodes.version]
        self._last_decodes.move_to_end(decodes.version)
        inputs, self.flat_order = last.captured.inputs, last.order
        self.sizes.recent_steps.append(last.padded)
        self._rows.grow_tables(decodes)
        if inputs.version != decodes.version:
            assert last.aside is not None
            self._put_aside(inputs)
            inputs.bring_back(last.aside, decodes.version)
            last.aside = None
        inputs.advance(decodes, self._rows, self._block_size, self.table.take_changes(inputs.most_changes))
        return self.run(step, last.captured, len(decodes), self.flat_order, has_filters=last.has_filters)

    def _put_aside(self, inputs: GraphInputs) -> None:
        """Before other decodes overwrite `inputs`: save those held there if they are a lane's, which will run again."""
        held = None if self._num_lanes == 1 or inputs.version is None else self._last_decodes.get(inputs.version)
        if held is not None and held.captured.inputs is inputs:
            held.aside = inputs.aside()

    def has_filters(self, draws: Mapping[str, Array]) -> bool:
        """Whether some draw filters; computed only if draws are sharded."""
        return self._step.is_sharded and has_filters(draws)

    def run(
        self, step: Step, captured: CapturedStep, num_draws: int, order: Tensor | None = None, *, has_filters: bool
    ) -> StepOutputs:
        """Replay a graph whose inputs are filled in. num_draws: how many draws are wanted. A graph's own draws are not
        cut to it: that would cost the host two more calls. order: the place of each received row; None: as they lie.
        has_filters: as in `GraphStep.draw`."""
        if step.turn is not None:
            step.turn.begins()
        received, there = step.received, captured.inputs.step.received
        if received is not None and there is not None:
            if order is None:
                there[: len(received)].copy_(received)
            else:
                there.index_copy_(0, order, received)
        captured.graph.replay()
        outputs = captured.outputs
        if isinstance(outputs, StepOutputs):
            return captured.filtered() if has_filters and captured.filtered is not None else outputs
        return self._step.draw(outputs, captured.inputs.step, num_draws, has_filters=has_filters)


@dataclass(slots=True)
class LastDecodes:
    """Decodes, and the graph that computed them. order: on a pipeline stage, their `flat_order`. has_filters: as in
    `run`. aside: their columns, if the graph's inputs hold other decodes now."""

    padded: PaddedStep
    captured: CapturedStep
    order: Tensor | None
    has_filters: bool
    aside: Mapping[str, Array] | None = None


class SameDecodesAgain:
    """A StepWay: the decodes that a graph computed last, alone, one token further. Its inputs are advanced in place."""

    def __init__(self, graphs: StepGraphs) -> None:
        self._graphs = graphs

    def takes(self, step: Step) -> bool:
        plan = step.plan
        return not plan.scheduled and plan.masks is None and self._graphs.can_replay_again(plan.decodes)

    def compute(self, step: Step) -> Outputs:
        return drawn(self._graphs.replay_again(step), len(step.plan.decodes), step)


def drawn(outputs: StepOutputs, num_draws: int, step: Step) -> Outputs:
    """A graph's outputs, of which the first `num_draws` are the step's."""
    return Outputs(PendingTokenIds(outputs.token_ids, num_draws, step.turn), is_replayed=True)
