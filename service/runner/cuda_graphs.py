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

from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from service.core.iteration_plan import ScheduledDecodes
from service.runner.batch_columns import Array, Int64Array
from service.runner.captured_step import CapturedStep
from service.runner.device_copies import to_device
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import GraphSize, PaddedStep, narrowest
from service.runner.graph_step import GraphStep, StepOutputs
from service.runner.selective_batching import FlatBatch
from service.runner.sequence_rows import DeviceBlockTable, SequenceRows
from service.runner.staging import PendingTokenIds, StagingTurn
from service.runner.step_ways import Outputs, Step

_NUM_RECENT_STEPS = 256


class GraphPlace:
    """What all graphs of a device share: the block table that they read, their memory pool, the stream of captures."""

    def __init__(self, rows: SequenceRows, device: torch.device) -> None:
        self.table = DeviceBlockTable(rows, device)
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)


class StepGraphs:
    """Can it be replayed? Then replay it. Engine thread; `capture` while no step runs.

    num_adapters: that a step may have, of graphs of steps with adapters; 0: of steps without. recent_steps: replayed or
    asked for in vain, with the sizes that they would be padded to now. turn: the iteration's, which hears when the step
    begins.
    """

    def __init__(
        self, step: GraphStep, rows: SequenceRows, block_size: int, place: GraphPlace, *, num_adapters: int = 0
    ) -> None:
        self.adapters = num_adapters > 0
        self.deterministic = step.deterministic
        self.is_stage = step.is_stage
        self._num_adapters = num_adapters
        self._step = step
        self._rows = rows
        self._block_size = block_size
        self._table = place.table
        self._pool = place.pool
        self._stream = place.stream
        self._decodes: dict[GraphSize, CapturedStep] = {}
        self._mixed: dict[GraphSize, CapturedStep] = {}
        self._decode_sizes: list[GraphSize] = []
        self._mixed_sizes: list[GraphSize] = []
        self._last_decodes: tuple[PaddedStep, CapturedStep] | None = None
        self._flat_order: Tensor | None = None
        self.recent_steps: deque[PaddedStep] = deque(maxlen=_NUM_RECENT_STEPS)

    def capture(self, sizes: Sequence[GraphSize]) -> None:
        """Capture a graph of each size. Each is computed once before, so that every kernel is compiled and loaded:
        neither may happen in a capture."""
        try:
            for size in sizes:
                self._capture(size)
        finally:
            self._decode_sizes, self._mixed_sizes = sorted(self._decodes), sorted(self._mixed)
            self._look_again_at_recent_steps()

    def _look_again_at_recent_steps(self) -> None:
        for index, (num_tokens, num_decodes, num_prompts, _) in enumerate(self.recent_steps):
            size = self.padded_size(num_tokens, num_decodes, num_prompts)
            self.recent_steps[index] = PaddedStep(num_tokens, num_decodes, num_prompts, size)

    def has_room_for(self, num_decodes: int) -> bool:
        """Whether so many sequences that compute one token each, and draw one id, can be replayed."""
        return self.padded_size(num_decodes, num_decodes, 0) is not None and self._table.is_complete

    def replay(
        self,
        decodes: Mapping[str, Array],
        turn: StagingTurn,
        version: int | None = None,
        received: Tensor | None = None,
        order: Int64Array | None = None,
    ) -> StepOutputs:
        """Replay decodes that it `has_room_for`; the outputs are in their order. decodes: by `decode_columns`. version:
        given if they are a plan's ScheduledDecodes, which may be replayed again. received: as Step has it. order:
        their `flat_order`, on a stage."""
        num_seqs = len(decodes["decode_rows"])
        size = self.padded_size(num_seqs, num_seqs, 0)
        assert size is not None
        step = self._decodes[size]
        self._last_decodes = PaddedStep(num_seqs, num_seqs, 0, size), step
        self.recent_steps.append(self._last_decodes[0])
        if order is not None:
            self._flat_order = to_device({"order": order}, self._table.tensor.device)["order"]
        step.inputs.fill_decodes(decodes, self._table.take_changes(step.inputs.most_changes), version)
        return self._run(step, num_seqs, turn, received, self._flat_order)

    def can_replay_again(self, decodes: ScheduledDecodes) -> bool:
        """Whether the last decodes that were replayed are these, one token before."""
        if self._last_decodes is None or not self._table.is_complete:
            return False
        return self._last_decodes[1].inputs.can_advance(decodes)

    def replay_again(self, decodes: ScheduledDecodes, turn: StagingTurn, received: Tensor | None = None) -> StepOutputs:
        """Replay decodes for which it `can_replay_again`. received: as Step has it."""
        assert self._last_decodes is not None
        padded, step = self._last_decodes
        self.recent_steps.append(padded)
        self._rows.grow_tables(decodes)
        changes = self._table.take_changes(step.inputs.most_changes)
        step.inputs.advance(decodes, self._rows, self._block_size, changes)
        return self._run(step, len(decodes), turn, received, self._flat_order)

    def handed_over(self, outputs: StepOutputs) -> Tensor:
        """Of the last decodes that were replayed what goes to the next stage, of its own memory: in the order of the
        flat batch, which all stages share, however each computes it."""
        assert self._flat_order is not None
        return outputs.logits.index_select(0, self._flat_order)

    def can_replay_mixed(self, batch: FlatBatch) -> bool:
        """Whether some graph has room for the batch's decodes, prompts and draws, and not far too much."""
        step = self._padded(batch)
        self.recent_steps.append(step)
        return self._table.is_complete and step.size is not None

    def replay_mixed(self, batch: FlatBatch, turn: StagingTurn, received: Tensor | None = None) -> StepOutputs:
        """Replay a batch that `can_replay_mixed`; the outputs have one row a draw, in the plan's order; where another
        stage draws, one a token, in the batch's. received: as Step has it."""
        size = self._padded(batch).size
        assert size is not None
        step = self._mixed[size]
        step.inputs.fill(batch, self._table.take_changes(step.inputs.most_changes))
        return self._run(step, batch.num_draws, turn, received)

    def padded_size(self, num_tokens: int, num_decodes: int, num_prompts: int) -> GraphSize | None:
        """The size of the graph that computes such a step, None if there is none. Of the `num_tokens` tokens
        `num_decodes` are decodes', the others belong to `num_prompts` prompts."""
        sizes = self._mixed_sizes if num_prompts else self._decode_sizes
        return narrowest(sizes, num_tokens, num_decodes, num_prompts)

    def _padded(self, batch: FlatBatch) -> PaddedStep:
        num_prompts = batch.num_seqs - batch.num_decode
        size = narrowest(self._mixed_sizes, batch.num_tokens, batch.num_decode, num_prompts, batch.num_draws)
        return PaddedStep(batch.num_tokens, batch.num_decode, num_prompts, size)

    def _capture(self, size: GraphSize) -> None:
        inputs = self._step.inputs(size, self._table.tensor, self._block_size, self._rows.columns, self._num_adapters)
        compute = self._step.whole if size.draws else self._step.hidden

        def compute_by_table(inputs: GraphInputs) -> StepOutputs | Tensor:
            inputs.fetch()
            self._table.write(inputs.table_places, inputs.table_values)
            return compute(inputs.step)

        captured = self._mixed if size.is_mixed else self._decodes
        captured[size] = CapturedStep(compute_by_table, inputs, self._pool, self._stream)

    def _run(
        self,
        step: CapturedStep,
        num_draws: int,
        turn: StagingTurn,
        received: Tensor | None = None,
        order: Tensor | None = None,
    ) -> StepOutputs:
        """num_draws: how many are wanted. Of what a graph draws nothing is cut off, as that would cost the host two
        more calls. order: of the places at which what was received belongs; None: as it lies."""
        turn.begins()
        there = step.inputs.step.received
        if received is not None and there is not None:
            if order is None:
                there[: len(received)].copy_(received)
            else:
                there.index_copy_(0, order, received)
        step.graph.replay()
        outputs = step.outputs
        return outputs if isinstance(outputs, StepOutputs) else self._step.draw(outputs, step.inputs.step, num_draws)


class SameDecodesAgain:
    """The decodes that a graph has computed last, alone, one token further: what it holds is advanced in place."""

    def __init__(self, graphs: StepGraphs) -> None:
        self._graphs = graphs

    def takes(self, step: Step) -> bool:
        plan = step.plan
        return not plan.scheduled and plan.masks is None and self._graphs.can_replay_again(plan.decodes)

    def compute(self, step: Step) -> Outputs:
        outputs = self._graphs.replay_again(step.plan.decodes, step.turn, step.received)
        return drawn(outputs, len(step.plan.decodes), step)


def drawn(outputs: StepOutputs, num_draws: int, step: Step) -> Outputs:
    """A graph's outputs, of which so many draws are the step's."""
    return Outputs(PendingTokenIds(outputs.token_ids, num_draws, step.turn), is_replayed=True)
