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

from torch import Tensor

from service.core.iteration import ScheduledDecodes
from service.runner.captured_sizes import CapturedSizes, GraphPlace
from service.runner.captured_step import CapturedStep
from service.runner.graph_step import GraphStep, StepOutputs
from service.runner.lane_decodes import LaneDecodes, LastDecodes
from service.runner.sequence_rows import SequenceRows
from service.runner.step import Outputs, PendingTokenIds, Step


class StepGraphs:
    """Runs graphs, and keeps the decodes that they computed last, to compute them again. Engine thread.

    step: what they compute. num_adapters: how many adapters a step may use; 0: these graphs are for steps without
    adapters. num_lanes: lanes whose last decodes are kept (service/scheduler/lanes.py). sizes: the graphs that exist.
    table: what they read. flat_order: that of the last replayed decodes, on a pipeline stage.
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
        self.step = step
        self._rows = rows
        self._block_size = block_size
        self.table = place.table
        self.sizes = CapturedSizes(step, rows, block_size, place, num_adapters)
        self._lanes = LaneDecodes(num_lanes)
        self.flat_order: Tensor | None = None

    def hold(self, decodes: LastDecodes, version: int | None) -> None:
        """Call before other decodes than those held are filled into a graph's inputs. version: of their plan's
        ScheduledDecodes, if they may be replayed again."""
        self._lanes.note(decodes, version)
        self.flat_order = decodes.order

    def can_replay_again(self, decodes: ScheduledDecodes) -> bool:
        """Whether these are the last decodes replayed for some lane, one token further."""
        last = self._lanes.last.get(decodes.version)
        return last is not None and self.table.is_complete and last.captured.inputs.can_advance(decodes, last.aside)

    def replay_again(self, step: Step) -> StepOutputs:
        """Replay a step whose decodes it `can_replay_again`."""
        decodes = step.plan.decodes
        last = self._lanes.last[decodes.version]
        self._lanes.last.move_to_end(decodes.version)
        inputs, self.flat_order = last.captured.inputs, last.order
        self.sizes.recent_steps.append(last.padded)
        self._rows.grow_tables(decodes)
        if inputs.version != decodes.version:
            self._lanes.bring_back(last, decodes.version)
        inputs.advance(decodes, self._rows, self._block_size, self.table.take_changes(inputs.most_changes))
        return self.run(step, last.captured, len(decodes), self.flat_order, has_filters=last.has_filters)

    def run(
        self, step: Step, captured: CapturedStep, num_draws: int, order: Tensor | None = None, *, has_filters: bool
    ) -> StepOutputs:
        """Replay a graph whose inputs are filled in. num_draws: how many draws are wanted. A graph's own draws are not
        cut to it: that would cost the host two more calls. order: as of `StepInputs.receive`.
        has_filters: as in `GraphStep.draw`."""
        if step.turn is not None:
            step.turn.begins()
        if step.received is not None:
            captured.inputs.step.receive(step.received, order)
        captured.graph.replay()
        outputs = captured.outputs
        if isinstance(outputs, StepOutputs):
            return captured.filtered() if has_filters and captured.filtered is not None else outputs
        return self.step.draw(outputs, captured.inputs.step, num_draws, has_filters=has_filters)


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
