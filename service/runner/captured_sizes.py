"""The step sizes that have graphs, and the graph of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from service.runner.captured_step import CapturedStep
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import GraphSize, PaddedStep, narrowest
from service.runner.graph_step import GraphStep, StepOutputs
from service.runner.selective_batching import FlatBatch
from service.runner.sequence_rows import DeviceBlockTable, SequenceRows

_NUM_RECENT_STEPS = 256


class GraphPlace:
    """What all graphs of a device share: the block table they read, their memory pool, the stream of captures."""

    def __init__(self, rows: SequenceRows, device: torch.device) -> None:
        self.table = DeviceBlockTable(rows, device)
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)


class CapturedSizes:
    """The graphs of one kind of step. Engine thread; call `capture` while no step runs.

    num_adapters: as in StepGraphs. decodes: graphs of decodes alone. mixed: graphs of decodes and prompts.
    recent_steps: steps that were replayed, or for which there was no graph, each with the size it would be padded to
    now.
    """

    def __init__(
        self, step: GraphStep, rows: SequenceRows, block_size: int, place: GraphPlace, num_adapters: int
    ) -> None:
        self._step = step
        self._rows = rows
        self._block_size = block_size
        self._num_adapters = num_adapters
        self._table = place.table
        self._pool = place.pool
        self._stream = place.stream
        self.decodes: dict[GraphSize, CapturedStep] = {}
        self.mixed: dict[GraphSize, CapturedStep] = {}
        self._decode_sizes: list[GraphSize] = []
        self._mixed_sizes: list[GraphSize] = []
        self.recent_steps: deque[PaddedStep] = deque(maxlen=_NUM_RECENT_STEPS)

    def capture(self, sizes: Sequence[GraphSize]) -> None:
        """Capture a graph of each size. Each is run once before, so that every kernel is compiled and loaded: neither
        may happen in a capture."""
        try:
            for size in sizes:
                self._capture(size)
        finally:
            self._decode_sizes, self._mixed_sizes = sorted(self.decodes), sorted(self.mixed)
            self._look_again_at_recent_steps()

    def padded_size(self, num_tokens: int, num_decodes: int, num_prompts: int) -> GraphSize | None:
        """The size of the graph that computes such a step; None if there is none. `num_decodes` of the tokens are
        decodes, the others belong to `num_prompts` prompts."""
        sizes = self._mixed_sizes if num_prompts else self._decode_sizes
        return narrowest(sizes, num_tokens, num_decodes, num_prompts)

    def padded(self, batch: FlatBatch) -> PaddedStep:
        """The batch, which has a prompt, with the size of the graph that computes it and all its draws, if there is
        one."""
        num_prompts = batch.num_seqs - batch.num_decode
        size = narrowest(self._mixed_sizes, batch.num_tokens, batch.num_decode, num_prompts, batch.num_draws)
        return PaddedStep(batch.num_tokens, batch.num_decode, num_prompts, size)

    def _look_again_at_recent_steps(self) -> None:
        for index, (num_tokens, num_decodes, num_prompts, _) in enumerate(self.recent_steps):
            size = self.padded_size(num_tokens, num_decodes, num_prompts)
            self.recent_steps[index] = PaddedStep(num_tokens, num_decodes, num_prompts, size)

    def _capture(self, size: GraphSize) -> None:
        inputs = self._step.inputs(size, self._table.tensor, self._block_size, self._rows.columns, self._num_adapters)
        compute = self._step.whole if size.draws else self._step.hidden

        def compute_by_table(inputs: GraphInputs) -> StepOutputs | Tensor:
            inputs.fetch()
            self._table.write(inputs.table_places, inputs.table_values)
            return compute(inputs.step)

        def filtered(inputs: GraphInputs, outputs: StepOutputs) -> StepOutputs:
            return self._step.filtered(inputs.step, outputs)

        captured = self.mixed if size.is_mixed else self.decodes
        draws_again = size.draws and self._step.draws_again(len(inputs.step.draw_rows))
        where = self._pool, self._stream, filtered if draws_again else None
        captured[size] = CapturedStep(compute_by_table, inputs, *where)
