"""Host arrays to the device and tensors back, without waiting.

A copy from or to pinned memory runs while the host computes. To allocate such memory in each iteration, and events,
cost more than to use them (loadtest/LOG.md). So iterations use it in turns: one takes over what another has left whose
ids have arrived. By then all of that one's copies have run, whatever the caller does: they stand before the ids in the
device's stream. Other memory is fresh, and torch hands it out again only after the copies that used it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes: as torch's own allocations, so that Triton compiles a kernel for one alignment only

Array = npt.NDArray[Any]

_FIRST_NUM_BYTES, _FIRST_NUM_IDS = 1 << 18, 1 << 11
"""In which nearly every iteration has room."""


def to_device(arrays: Mapping[str, Array], device: torch.device, turn: StagingTurn | None = None) -> dict[str, Tensor]:
    """The arrays as tensors on `device`, in one copy. On the CPU they share the arrays' memory. turn: the iteration's,
    whose memory they leave from; else they leave from fresh memory."""
    if device.type == "cpu":
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    offsets, num_bytes = layout({name: array.nbytes for name, array in arrays.items()})
    staged = pinned(num_bytes, torch.uint8) if turn is None else turn.inputs(num_bytes)
    for name, array in arrays.items():
        part = staged.array[offsets[name] : offsets[name] + array.nbytes]
        part.view(array.dtype).reshape(array.shape)[...] = array
    there = staged.tensor[:num_bytes].to(device, non_blocking=True)
    return {name: part_of(there, offsets[name], array) for name, array in arrays.items()}


def layout(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """sizes: bytes of each named part -> the offset of each part in one buffer, and the bytes of the whole buffer."""
    offsets, end = {}, 0
    for name, num_bytes in sizes.items():
        offsets[name] = end
        end += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def part_of(buffer: Tensor, offset: int, like: Array) -> Tensor:
    """The bytes of `buffer` from `offset` on, in the shape and type of an array."""
    part = buffer[offset : offset + like.nbytes].view(_torch_dtype(like.dtype))
    return part if like.ndim == 1 else part.view(like.shape)


class FixedTensors:
    """Tensors at one place on the device for good, and an array for each on the host, too: what a CUDA graph reads.

    The graph itself begins with `fetch`. So to launch it is one call instead of two, and nothing is copied but by the
    device.
    """

    def __init__(self, padding: Mapping[str, Array], device: torch.device) -> None:
        """padding: what the tensors hold where nothing was written."""
        offsets, num_bytes = layout({name: array.nbytes for name, array in padding.items()})
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._tensors = {name: part_of(self._buffer, offsets[name], array) for name, array in padding.items()}
        is_cuda = device.type == "cuda"
        self._staged = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=is_cuda)
        self._fetched = torch.cuda.Event(blocking=True, external=True) if is_cuda else None
        memory = self._staged.numpy()
        self._host: Mapping[str, Array] = {
            name: memory[offsets[name] : offsets[name] + a.nbytes].view(a.dtype) for name, a in padding.items()
        }
        self._padding = padding
        self._num_written = {name: len(array) for name, array in padding.items()}
        self.write({name: array[:0] for name, array in padding.items()})
        self.fetch()

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def write(self, values: Mapping[str, Array]) -> None:
        """Each becomes values and padding behind them, which is written only where there were values before; tensors
        that are not named stay. Waits until the writes before have been fetched: for the last step to begin that reads
        these tensors, as it has long done where no more than one step is launched behind another."""
        if self._fetched is not None and not self._fetched.query():
            self._fetched.synchronize()
        for name, array in values.items():
            host, num, num_before = self._host[name], len(array), self._num_written[name]
            host[:num] = array
            if num < num_before:
                host[num:num_before] = self._padding[name][num:num_before]
            self._num_written[name] = num

    def written(self) -> dict[str, Array]:
        """The values on the host, without padding. They may be changed in place between a `write` and the next
        `fetch`."""
        return {name: self._host[name][:num] for name, num in self._num_written.items()}

    def fetch(self) -> None:
        """The tensors become what was written when the device comes to it. A graph that captures this does it in each
        replay."""
        self._buffer.copy_(self._staged, non_blocking=True)
        if self._fetched is not None:
            self._fetched.record()


class AsyncCopy:
    """Tensors of the device that are copied to the host behind the work that makes them."""

    def __init__(self, *tensors: Tensor) -> None:
        self._copied: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            tensors = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
            self._copied = torch.cuda.Event(blocking=True)  # who waits for it sleeps
            self._copied.record()
        self._tensors = tensors

    def wait(self) -> tuple[Tensor, ...]:
        """The tensors on the host. Other threads run meanwhile."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._tensors


class StagingTurns:
    """Engine thread. As many turns are made as iterations are in flight at once; one that fails keeps its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._left: list[StagingTurn] = []

    def take(self) -> StagingTurn:
        """One that nobody uses, for one iteration."""
        return self._left.pop() if self._left else StagingTurn(self._device, self._left)


class StagingTurn:
    """One iteration's, from `StagingTurns.take` until `collect`. On a CPU it has neither memory nor clock: nothing is
    copied or timed there.

    A step's seconds are the device's, because what the host does between two steps is no part of them: its preparation,
    or another process that kept it from launching, would make the same step 3 % longer or shorter each time (Llama-8B,
    one H200).
    """

    def __init__(self, device: torch.device, left: list[StagingTurn]) -> None:
        self._left = left
        self._is_cuda = device.type == "cuda"
        self._inputs_taken = False
        if self._is_cuda:
            self._inputs = pinned(_FIRST_NUM_BYTES, torch.uint8)
            self._ids = _PinnedIds()
            self._stream = torch.cuda.current_stream(device)
            self._began = torch.cuda.Event(enable_timing=True)
            # A thread that waits for it sleeps; for the default kind of event it would spin.
            self._done = torch.cuda.Event(enable_timing=True, blocking=True)

    def inputs(self, num_bytes: int) -> PinnedPart:
        """At least so much memory for copies to the device. Whoever asks again in the same iteration gets memory of its
        own. On a GPU."""
        if self._inputs_taken:
            return pinned(num_bytes, torch.uint8)
        self._inputs_taken = True
        if num_bytes > len(self._inputs.array):
            self._inputs = pinned(_power_of_two(num_bytes), torch.uint8)
        return self._inputs

    def begins(self) -> None:
        """All that is launched from now on is the step's; a moment noted before counts no more."""
        if self._is_cuda:
            self._began.record(self._stream)

    def bring(self, token_ids: Tensor) -> None:
        """[N] int64, perhaps none, begin to be copied to the host, behind the work that makes them. Once, on a GPU."""
        if len(token_ids):
            self._ids.first(len(token_ids)).copy_(token_ids, non_blocking=True)
        self._done.record(self._stream)

    def is_done(self) -> bool:
        """Whether what it was told to `bring` is there."""
        is_done: bool = self._done.query()
        return is_done

    def collect(self, num: int) -> tuple[tuple[int, ...], float]:
        """Wait for the ids, and give the turn back: the first `num` of them, and the step's seconds by the device's
        clock, up to their arrival. Other threads run meanwhile. After a fault of the device it is not given back."""
        self._done.synchronize()
        token_ids: tuple[int, ...] = tuple(self._ids.whole.array[:num].tolist())
        seconds: float = self._began.elapsed_time(self._done) / 1000
        self._inputs_taken = False
        self._left.append(self)
        return token_ids, seconds


class PinnedPart:
    """The same memory as a tensor and as an array."""

    __slots__ = ("array", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.array: npt.NDArray[Any] = tensor.numpy()


def pinned(num: int, dtype: torch.dtype) -> PinnedPart:
    """Fresh memory. It is handed out again only after the copies that used it: torch sees to that."""
    return PinnedPart(torch.empty(num, dtype=dtype, pin_memory=True))


class _PinnedIds:
    """int64, asked for in few numbers again and again: to cut a tensor costs nearly as much as to copy it."""

    def __init__(self) -> None:
        self.whole = pinned(_FIRST_NUM_IDS, torch.int64)
        self._parts: dict[int, Tensor] = {}

    def first(self, num: int) -> Tensor:
        """Of `whole` the first `num` entries. If it has fewer, it becomes longer, and what it held is gone."""
        part = self._parts.get(num)
        if part is None:
            if num > len(self.whole.array):
                self.whole = pinned(_power_of_two(num), torch.int64)
                self._parts.clear()
            part = self._parts[num] = self.whole.tensor[:num]
        return part


def _power_of_two(num: int) -> int:
    """The least that is not below `num`, which is positive."""
    return 1 << (num - 1).bit_length()


class PendingTokenIds:
    """[N] int64 ids that are copied to the host; the first `num` of them count. turn: the iteration's. compute_s: once
    they are there, `StagingTurn.collect`'s seconds; None on a CPU."""

    def __init__(self, token_ids: Tensor, num: int, turn: StagingTurn | None = None) -> None:
        self.compute_s: float | None = None
        self._num = num
        self._turn: StagingTurn | None = None
        self._token_ids: tuple[int, ...] | Tensor = token_ids
        if turn is not None and token_ids.is_cuda:
            turn.bring(token_ids if num else token_ids[:0])
            self._turn = turn

    def is_done(self) -> bool:
        """Whether they are there."""
        return self._turn is None or self._turn.is_done()

    def wait(self) -> tuple[int, ...]:
        """Idempotent."""
        if self._turn is not None:
            self._token_ids, self.compute_s = self._turn.collect(self._num)
            self._turn = None
        elif isinstance(self._token_ids, Tensor):
            self._token_ids = tuple(self._token_ids[: self._num].tolist())
        return self._token_ids


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return _DTYPES[dtype.char]


_DTYPES = {
    np.dtype(np.int64).char: torch.int64,
    np.dtype(np.int32).char: torch.int32,
    np.dtype(np.float32).char: torch.float32,
    np.dtype(np.uint8).char: torch.uint8,
    np.dtype(np.bool_).char: torch.bool,
}
