"""Host arrays to the device and tensors back, without waiting.

A copy from or to pinned memory runs while the host goes on. It is the memory of the iteration's turn
(service/runner/staging_turns.py), or fresh; torch hands that out again only after the copies that used it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from service.runner.staging_turns import StagingTurn, pinned

_ALIGNMENT = 16  # bytes: as torch's own allocations, so that Triton compiles a kernel for one alignment only

Array = npt.NDArray[Any]


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

    def __init__(self, like: Mapping[str, Array], device: torch.device) -> None:
        offsets, num_bytes = layout({name: array.nbytes for name, array in like.items()})
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._tensors = {name: part_of(self._buffer, offsets[name], array) for name, array in like.items()}
        is_cuda = device.type == "cuda"
        self._staged = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=is_cuda)
        self._fetched = torch.cuda.Event(blocking=True, external=True) if is_cuda else None
        memory = self._staged.numpy()
        self._host: Mapping[str, Array] = {
            name: memory[offsets[name] : offsets[name] + array.nbytes].view(array.dtype) for name, array in like.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def writable(self) -> Mapping[str, Array]:
        """The arrays, until the next `fetch` is launched. Waits for those launched before: for the last step to begin
        that reads these tensors, as it has long done where no more than one step is launched behind another."""
        if self._fetched is not None and not self._fetched.query():
            self._fetched.synchronize()
        return self._host

    def fetch(self) -> None:
        """The tensors become what the arrays are when the device comes to it. A graph that captures this does it in
        each replay."""
        self._buffer.copy_(self._staged, non_blocking=True)
        if self._fetched is not None:
            self._fetched.record()


class AsyncCopy:
    """Tensors of the device, being copied to the host behind the work that makes them."""

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


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return _DTYPES[dtype.char]


_DTYPES = {
    np.dtype(np.int64).char: torch.int64,
    np.dtype(np.int32).char: torch.int32,
    np.dtype(np.float32).char: torch.float32,
    np.dtype(np.uint8).char: torch.uint8,
    np.dtype(np.bool_).char: torch.bool,
}
