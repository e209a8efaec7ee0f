"""Full CUDA graphs of a step: one launch instead of hundreds.

A graph replays the kernels of one step, from the embedding to the drawn ids, with the addresses that it was captured
with. So there is one for each of a few padded sizes, of decodes alone and of decodes beside some tokens of prompts;
inputs lie at fixed places, and what is padding has no context, writes nothing and draws what nobody reads. All share
one memory pool, the largest captured first, so that the others fit into what it needed. What was not captured, yet or
ever, runs in the next larger graph, or kernel by kernel.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from kernels.replay_timing import replay_seconds
from service.core.iteration_plan import ScheduledSequence
from service.runner.decode_inputs import DecodeInputs
from service.runner.decode_rows import DecodeRows, is_decode
from service.runner.device_block_table import DeviceBlockTable
from service.runner.mixed_inputs import MixedInputs, most_prompts
from service.runner.selective_batching import FlatBatch
from service.runner.sequence_rows import SequenceRows
from service.runner.step_inputs import StepInputs

MAX_DECODES = 1024
"""Of the largest graph: beyond, the device computes for longer than the host launches, even if that has to wait for
the interpreter."""

MAX_TOKENS = 2048
"""The same for steps with prompts."""

FEW_DECODES = 32
MIXED_DECODES = (0, FEW_DECODES, 256, 512, MAX_DECODES)
"""Of a step with prompts, decodes cost a row of logits each, and little more: so there are few sizes of them."""

NARROW_TOKENS = 512
"""A step of fewer tokens may be padded up to so many, as the device takes hardly longer than the host to launch them
one by one; a larger one to twice its size."""


_FARTHEST = 1.25
"""So that what an outrun graph held is not too narrow for the one that replaces it."""

_CLEARLY = 0.9
"""Beyond what two timings of one graph differ by, as clocks change and others may use the device: at 0.98 a start
beside other processes dropped a dozen good sizes."""

TILED = (64, 128, 192, 256, 320, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1536, 1664, 1792, 2048)
"""Rows at which the time of cuBLAS's products stops to be flat, so that padding up to them costs little.

Products of a Llama-8B step on one H200, ms (bf16, torch 2.11, CUDA 13), sizes that are not in the list in brackets:
64 4.1, 128 4.4, 192 5.2, 256 5.8, (288 6.9,) 320 6.8, (352 7.8,) 384 7.7, (416 9.3, 448 12.9, 480 9.7,) 512 9.6,
(576 11.7,) 640 12.2, (704 14.2,) 768 14.4, (832 17.7,) 896 17.3, (960 17.9,) 1024 18.5, 1152 21.0, 1280 23.9,
(1408 27.1,) 1536 27.9, 1664 33.4, 1792 37.5, (1920 39.3,) 2048 39.6.
"""


class GraphSize(NamedTuple):
    """Tokens that a graph has room for, and decodes among them: if as many, it has no prompts."""

    num_tokens: int
    num_decodes: int

    @property
    def is_mixed(self) -> bool:
        return self.num_decodes < self.num_tokens

    def takes(self, num_tokens: int, num_decodes: int, num_prompts: int) -> bool:
        """Whether a step of so many tokens, so many of them of decodes, the others of so many prompts, has room."""
        most = most_prompts(self.num_tokens) if self.is_mixed else 0
        return num_tokens <= self.num_tokens and num_decodes <= self.num_decodes and num_prompts <= most


class StepOutputs(NamedTuple):
    """token_ids [N] int64, drawn from logits [N, vocab_size]. A graph's are overwritten by the next replay of any, and
    end in what padding drew."""

    token_ids: Tensor
    logits: Tensor


Compute = Callable[[StepInputs], StepOutputs]
Inputs = TypeVar("Inputs", bound=DecodeInputs | MixedInputs)


class StepGraphs:
    """Can it be replayed? Then replay it. Engine thread; `capture` while no step runs.

    compute: the step over its inputs, without a wait for the device. num_replays: so far.
    """

    def __init__(self, compute: Compute, rows: SequenceRows, block_size: int, device: torch.device) -> None:
        self._compute = compute
        self._block_size = block_size
        self._table = DeviceBlockTable(rows, device)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._decodes: dict[GraphSize, _CapturedStep[DecodeInputs]] = {}
        self._mixed: dict[GraphSize, _CapturedStep[MixedInputs]] = {}
        self._decode_sizes: list[GraphSize] = []
        self._mixed_sizes: list[GraphSize] = []
        self.num_replays = 0

    def capture(self, sizes: Sequence[GraphSize]) -> None:
        """Each size is computed once before, so that every kernel is compiled and loaded: neither may happen in a
        capture."""
        was_collecting = gc.isenabled()
        gc.disable()  # a collection might free a tensor, which no capture allows
        try:
            for size in sizes:
                self._capture(size)
        finally:
            if was_collecting:
                gc.enable()
            self._decodes, self._mixed = _worth_keeping(self._decodes), _worth_keeping(self._mixed)
            self._decode_sizes, self._mixed_sizes = sorted(self._decodes), sorted(self._mixed)

    def can_replay(self, scheduled: Sequence[ScheduledSequence]) -> bool:
        """Whether a graph is large enough, and every sequence computes one token and draws one id."""
        return (
            self.padded_step(len(scheduled), len(scheduled), 0) is not None
            and self._table.is_complete
            and is_decode(scheduled)
        )

    def replay(self, decodes: DecodeRows) -> StepOutputs:
        """Of sequences that `can_replay`, in their order."""
        num_seqs = len(decodes.rows)
        size = self.padded_step(num_seqs, num_seqs, 0)
        assert size is not None
        step = self._decodes[size]
        step.inputs.fill(decodes, self._table.take_changes(step.inputs.most_changes))
        return self._run(step, num_seqs)

    def can_replay_mixed(self, batch: FlatBatch) -> bool:
        """Whether some graph has room for the batch's decodes and prompts, and not far too much, and no sequence draws
        twice."""
        return (
            len(batch.seeds) == len(batch.logit_rows) and self._table.is_complete and self._size_of(batch) is not None
        )

    def replay_mixed(self, batch: FlatBatch) -> StepOutputs:
        """Of a batch that `can_replay_mixed`; one row a draw, in the plan's order."""
        size = self._size_of(batch)
        assert size is not None
        step = self._mixed[size]
        step.inputs.fill(batch, self._table.take_changes(step.inputs.most_changes))
        return self._run(step, len(batch.seeds))

    def padded_step(self, num_tokens: int, num_decodes: int, num_prompts: int) -> GraphSize | None:
        """Of the graph for a step of so many tokens, so many of them of decodes, the others of so many prompts; None if
        there is none."""
        sizes = self._mixed_sizes if num_prompts else self._decode_sizes
        return narrowest(sizes, num_tokens, num_decodes, num_prompts)

    def _size_of(self, batch: FlatBatch) -> GraphSize | None:
        num_prompts = len(batch.rows) - batch.num_decode
        return narrowest(self._mixed_sizes, len(batch.token_ids), batch.num_decode, num_prompts)

    def _capture(self, size: GraphSize) -> None:
        inputs = inputs_of(size, self._table.tensor, self._block_size)
        if isinstance(inputs, MixedInputs):
            self._mixed[size] = _CapturedStep(self._compute_by_table, inputs, self._pool, self._stream)
        else:
            self._decodes[size] = _CapturedStep(self._compute_by_table, inputs, self._pool, self._stream)

    def _compute_by_table(self, inputs: DecodeInputs | MixedInputs) -> StepOutputs:
        """The step, once the table has the changes that come with it."""
        self._table.write(inputs.table_places, inputs.table_values)
        return self._compute(inputs.step)

    def _run(self, step: _CapturedStep[Inputs], num_draws: int) -> StepOutputs:
        """num_draws: what is wanted of the outputs; nothing is cut off, as that would cost the host two more calls."""
        assert num_draws <= len(step.outputs.token_ids)
        step.graph.replay()
        self.num_replays += 1
        return step.outputs


def outrun(timed: Mapping[GraphSize, float]) -> set[GraphSize]:
    """Of the sizes with their seconds, those that take longer than another with room for all that they hold: a matrix
    product of some numbers of rows is slow, as the library chose badly for them (448 rows of Llama-8B's gate and up
    projections take 1.7 times as long as 512, by cuBLAS on one H200)."""
    return {
        size
        for size, seconds in timed.items()
        for other, its_seconds in timed.items()
        if size.num_tokens < other.num_tokens <= max(NARROW_TOKENS, _FARTHEST * size.num_tokens)
        and size.num_decodes <= other.num_decodes
        and its_seconds < _CLEARLY * seconds
    }


def _worth_keeping(steps: dict[GraphSize, _CapturedStep[Inputs]]) -> dict[GraphSize, _CapturedStep[Inputs]]:
    slow = outrun({size: step.seconds for size, step in steps.items()})
    return {size: step for size, step in steps.items() if size not in slow}


def narrowest(sizes: Sequence[GraphSize], num_tokens: int, num_decodes: int, num_prompts: int) -> GraphSize | None:
    """The first of the rising sizes that takes such a step, unless it would be padded too far."""
    widest = max(NARROW_TOKENS, 2 * num_tokens)
    for index in range(bisect_left(sizes, (num_tokens, num_decodes)), len(sizes)):
        size = sizes[index]
        if size.takes(num_tokens, num_decodes, num_prompts):
            return size if not size.is_mixed or size.num_tokens <= widest else None
    return None


def inputs_of(size: GraphSize, block_table: Tensor, block_size: int) -> DecodeInputs | MixedInputs:
    """For a step of this size; all of it is padding yet. block_table: as of DeviceBlockTable."""
    if size.is_mixed:
        return MixedInputs(size.num_tokens, size.num_decodes, block_table, block_size)
    return DecodeInputs(size.num_decodes, block_table, block_size)


def graph_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> list[GraphSize]:
    """In the order to capture them: the largest, then the common ones, then the rest; each part largest first."""
    common = common_sizes(max_num_seqs, max_num_batched_tokens)
    sizes = common | {*_decode_sizes(max_num_seqs), *_mixed_sizes(max_num_seqs, max_num_batched_tokens)}
    largest = max(sizes)
    return sorted(sizes, key=lambda size: (size != largest, size not in common, -size.num_tokens, size))


def common_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> set[GraphSize]:
    """Worth waiting for before the first request, as a burst right after it leaves no time for others: any step fits
    one of them. Beside a full batch of decodes, where throughput counts, any number of tokens has its own."""
    decodes = sorted(_decode_sizes(max_num_seqs))
    mixed = sorted(_mixed_sizes(max_num_seqs, max_num_batched_tokens))
    most_decodes = dict(mixed)  # the last of each number of tokens
    return {
        decodes[-1],
        *(size for size in decodes if _is_power_of_two(size.num_tokens)),
        *(size for size in mixed if size.num_decodes == most_decodes[size.num_tokens]),
        *(size for size in mixed if size.num_decodes == FEW_DECODES and _is_power_of_two(size.num_tokens)),
        GraphSize(mixed[-1].num_tokens, 0),
    }


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _decode_sizes(max_num_seqs: int) -> list[GraphSize]:
    """Few sizes for few, then every eighth, above 256 as TILED."""
    largest = min(max_num_seqs, MAX_DECODES)
    counts = {1, 2, 4, *range(8, 257, 8), *(count for count in TILED if count > 256), largest}
    return [GraphSize(count, count) for count in counts if count <= largest]


def _mixed_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> list[GraphSize]:
    largest = min(max_num_batched_tokens, MAX_TOKENS)
    counts = {32, *TILED, largest}
    most_decodes = min(max_num_seqs, MAX_DECODES)
    beside = {count for count in MIXED_DECODES if count < most_decodes} | {most_decodes}
    # A prompt that shares a step has two tokens at least: one is computed like a decode.
    return [GraphSize(n, d) for n in counts if n <= largest for d in {min(d, n - 2) for d in beside} if d >= 0]


class _CapturedStep(Generic[Inputs]):
    """A graph, where it reads and writes, and the seconds that it takes with nothing but padding."""

    def __init__(
        self, compute: Callable[[Inputs], StepOutputs], inputs: Inputs, pool: Any, stream: torch.cuda.Stream
    ) -> None:
        self.inputs = inputs
        self.graph = torch.cuda.CUDAGraph()
        compute(inputs)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = compute(inputs)
            except BaseException:
                with suppress(RuntimeError):  # the capture's own complaint, after the fault that ended it
                    self.graph.capture_end()
                raise
            self.graph.capture_end()
        self.seconds = replay_seconds(self.graph, rounds=1)
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
