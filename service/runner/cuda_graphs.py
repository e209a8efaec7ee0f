"""Full CUDA graphs of the decode step: one launch instead of hundreds.

A graph replays the kernels of one step, from the embedding to the drawn ids, with the addresses that it was captured
with. So there is one for each of a few padded numbers of rows; inputs lie at fixed places, and rows beyond the batch's
have no context, write nothing and draw what nobody reads. All share one memory pool, the largest captured first, so
that the others fit into what it needed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from service.core.iteration_plan import ScheduledSequence
from service.runner.decode_inputs import DecodeInputs
from service.runner.decode_rows import DecodeRows, is_decode
from service.runner.device_block_table import DeviceBlockTable
from service.runner.sequence_rows import SequenceRows

LARGEST = 512
"""Rows of the largest graph: beyond, the device computes for longer than the host launches."""


class DecodeOutputs(NamedTuple):
    """token_ids [N] int64, drawn from logits [N, vocab_size]. A graph's are overwritten by the next replay of any."""

    token_ids: Tensor
    logits: Tensor


class DecodeGraphs:
    """Can it be replayed? Then replay it. Engine thread; `capture` before serving.

    compute: the decode step over the inputs, without a wait for the device.
    """

    def __init__(
        self,
        compute: Callable[[DecodeInputs], DecodeOutputs],
        rows: SequenceRows,
        block_size: int,
        device: torch.device,
    ) -> None:
        self._compute = compute
        self._rows = rows
        self._block_size = block_size
        self._table = DeviceBlockTable(rows, device)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._captured: list[_CapturedStep] = []

    @property
    def sizes(self) -> list[int]:
        return [step.inputs.num_rows for step in self._captured]

    def capture(self, sizes: Sequence[int]) -> None:
        """Each size is computed once before, so that every kernel is compiled and loaded: neither may happen in a
        capture."""
        gc.disable()  # a collection might free a tensor, which no capture allows
        try:
            for size in sorted(sizes, reverse=True):
                inputs = DecodeInputs(size, self._table.tensor, self._block_size)
                self._compute(inputs)
                torch.cuda.synchronize()
                self._captured.append(_CapturedStep(self._compute, inputs, self._pool, self._stream))
        finally:
            gc.enable()
        self._captured.sort(key=lambda step: step.inputs.num_rows)

    def can_replay(self, scheduled: Sequence[ScheduledSequence]) -> bool:
        """Whether a graph is large enough, and every sequence computes one token and draws one id."""
        return (
            bool(self._captured)
            and len(scheduled) <= self._captured[-1].inputs.num_rows
            and self._table.is_complete
            and is_decode(scheduled)
        )

    def replay(self, decodes: DecodeRows) -> DecodeOutputs:
        """Of sequences that `can_replay`, in their order."""
        num_seqs = len(decodes.rows)
        step = next(step for step in self._captured if step.inputs.num_rows >= num_seqs)
        step.inputs.fill(decodes)
        self._table.bring_up_to_date()
        step.graph.replay()
        return DecodeOutputs(step.outputs.token_ids[:num_seqs], step.outputs.logits[:num_seqs])


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Few for few rows, then every eighth, which is as finely as the matrix products' speed steps; wider above 256."""
    largest = min(max_num_seqs, LARGEST)
    sizes = {1, 2, 4, *range(8, 257, 8), *range(272, LARGEST + 1, 16)}
    return sorted({size for size in sizes if size < largest} | {largest})


class _CapturedStep:
    """A graph, and where it reads and writes."""

    def __init__(
        self,
        compute: Callable[[DecodeInputs], DecodeOutputs],
        inputs: DecodeInputs,
        pool: Any,
        stream: torch.cuda.Stream,
    ) -> None:
        self.inputs = inputs
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = compute(inputs)
            finally:
                self.graph.capture_end()
        # The ids are kept for this graph alone. Nobody holds the logits' memory, so the next capture may use it too:
        # they are the largest tensor by far.
        self.outputs = DecodeOutputs(outputs.token_ids, _without_holding(outputs.logits))


def _without_holding(tensor: Tensor) -> Tensor:
    """The same memory as a tensor whose allocation it does not keep; the caller knows what else does."""
    as_bytes = tensor.view(torch.uint8)
    described = _Memory(as_bytes.data_ptr(), tuple(as_bytes.shape))
    return torch.as_tensor(described, device=tensor.device).view(tensor.dtype)


class _Memory:
    """Device memory as numba's CUDA array interface describes it, which torch reads."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "|u1", "data": (address, False), "version": 2}
