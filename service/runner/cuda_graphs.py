"""Full CUDA graphs of a step: one launch instead of hundreds.

A graph replays the kernels of one step, from the embedding to the drawn ids, with the addresses that it was captured
with. So there is one for each of a few padded sizes, of decodes alone and of decodes beside some tokens of prompts;
inputs lie at fixed places, and what is padding has no context, writes nothing and draws what nobody reads. All share
one memory pool, the largest captured first, so that the others fit into what it needed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from service.core.iteration_plan import ScheduledSequence
from service.runner.decode_inputs import DecodeInputs
from service.runner.decode_rows import DecodeRows, is_decode
from service.runner.device_block_table import DeviceBlockTable
from service.runner.mixed_inputs import MixedInputs
from service.runner.selective_batching import FlatBatch
from service.runner.sequence_rows import SequenceRows
from service.runner.step_inputs import StepInputs

LARGEST = 512
"""Decodes of the largest graph: beyond, the device computes for longer than the host launches."""

MIXED_DECODES = (8, 32, 64, 128, 256)
MIXED_TOKENS = (32, 64, 128, 192, 256, 384, 512, 768, 1024)
"""What the two sides of a mixed step are padded to. With more tokens of prompts the device is what takes the time."""


class GraphSize(NamedTuple):
    """Decodes, and tokens of prompts beside them, that a graph has room for."""

    num_decodes: int
    num_tokens: int = 0


class StepOutputs(NamedTuple):
    """token_ids [N] int64, drawn from logits [N, vocab_size]. A graph's are overwritten by the next replay of any."""

    token_ids: Tensor
    logits: Tensor


Compute = Callable[[StepInputs], StepOutputs]
Inputs = TypeVar("Inputs", bound=DecodeInputs | MixedInputs)


class StepGraphs:
    """Can it be replayed? Then replay it. Engine thread; `capture` before serving.

    compute: the step over its inputs, without a wait for the device.
    """

    def __init__(self, compute: Compute, rows: SequenceRows, block_size: int, device: torch.device) -> None:
        self._compute = compute
        self._block_size = block_size
        self._table = DeviceBlockTable(rows, device)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._decodes: list[_CapturedStep[DecodeInputs]] = []
        self._mixed: list[_CapturedStep[MixedInputs]] = []

    def capture(self, sizes: Sequence[GraphSize]) -> None:
        """Each size is computed once before, so that every kernel is compiled and loaded: neither may happen in a
        capture."""
        gc.disable()  # a collection might free a tensor, which no capture allows
        try:
            for size in sorted(sizes, key=sum, reverse=True):
                self._capture(size)
        finally:
            gc.enable()
        self._decodes.sort(key=lambda step: step.inputs.num_rows)
        self._mixed.sort(key=lambda step: step.inputs.num_decodes + step.inputs.num_tokens)

    def can_replay(self, scheduled: Sequence[ScheduledSequence]) -> bool:
        """Whether a graph is large enough, and every sequence computes one token and draws one id."""
        return (
            bool(self._decodes)
            and len(scheduled) <= self._decodes[-1].inputs.num_rows
            and self._table.is_complete
            and is_decode(scheduled)
        )

    def replay(self, decodes: DecodeRows) -> StepOutputs:
        """Of sequences that `can_replay`, in their order."""
        num_seqs = len(decodes.rows)
        step = next(step for step in self._decodes if step.inputs.num_rows >= num_seqs)
        step.inputs.fill(decodes)
        return self._run(step, num_seqs)

    def can_replay_mixed(self, batch: FlatBatch) -> bool:
        """Whether some graph has room for the batch's decodes and prompts, and no sequence draws twice."""
        return (
            len(batch.seeds) == len(batch.logit_rows)
            and self._table.is_complete
            and any(step.inputs.fits(batch) for step in self._mixed)
        )

    def replay_mixed(self, batch: FlatBatch) -> StepOutputs:
        """Of a batch that `can_replay_mixed`; one row a draw, in the plan's order."""
        step = next(step for step in self._mixed if step.inputs.fits(batch))
        step.inputs.fill(batch)
        return self._run(step, len(batch.seeds))

    def padded_tokens(self, num_tokens: int, has_prompts: bool) -> int:
        """Tokens that a step of so many is computed as; as many, if no graph takes it."""
        sizes = (
            [step.inputs.num_decodes + step.inputs.num_tokens for step in self._mixed]
            if has_prompts
            else [step.inputs.num_rows for step in self._decodes]
        )
        return min((size for size in sizes if size >= num_tokens), default=num_tokens)

    def _capture(self, size: GraphSize) -> None:
        table = self._table.tensor
        if size.num_tokens:
            mixed = MixedInputs(size.num_decodes, size.num_tokens, table, self._block_size)
            self._mixed.append(_CapturedStep(self._compute, mixed, self._pool, self._stream))
        else:
            decode = DecodeInputs(size.num_decodes, table, self._block_size)
            self._decodes.append(_CapturedStep(self._compute, decode, self._pool, self._stream))

    def _run(self, step: _CapturedStep[Inputs], num_draws: int) -> StepOutputs:
        self._table.bring_up_to_date()
        step.graph.replay()
        return StepOutputs(step.outputs.token_ids[:num_draws], step.outputs.logits[:num_draws])


def graph_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> list[GraphSize]:
    """Largest first. Decodes alone: few sizes for few, then every eighth, which is as finely as the matrix products'
    speed steps, wider above 256."""
    largest = min(max_num_seqs, LARGEST)
    decodes = {1, 2, 4, *range(8, 257, 8), *range(272, LARGEST + 1, 16)}
    sizes = [GraphSize(size) for size in {size for size in decodes if size < largest} | {largest}]
    largest = min(max_num_seqs, MIXED_DECODES[-1])
    beside = {size for size in MIXED_DECODES if size < largest} | {largest}
    sizes += [GraphSize(d, t) for d in beside for t in MIXED_TOKENS if t <= max_num_batched_tokens]
    return sorted(sizes, key=sum, reverse=True)


class _CapturedStep(Generic[Inputs]):
    """A graph, and where it reads and writes."""

    def __init__(self, compute: Compute, inputs: Inputs, pool: Any, stream: torch.cuda.Stream) -> None:
        self.inputs = inputs
        self.graph = torch.cuda.CUDAGraph()
        compute(inputs.step)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = compute(inputs.step)
            finally:
                self.graph.capture_end()
        # The ids are kept for this graph alone. Nobody holds the logits' memory, so the next capture may use it too:
        # they are the largest tensor by far.
        self.outputs = StepOutputs(outputs.token_ids, _without_holding(outputs.logits))


def _without_holding(tensor: Tensor) -> Tensor:
    """The same memory as a tensor whose allocation it does not keep; the caller knows what else does."""
    as_bytes = tensor.view(torch.uint8)
    described = _Memory(as_bytes.data_ptr(), tuple(as_bytes.shape))
    return torch.as_tensor(described, device=tensor.device).view(tensor.dtype)


class _Memory:
    """Device memory as numba's CUDA array interface describes it, which torch reads."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "|u1", "data": (address, False), "version": 2}
