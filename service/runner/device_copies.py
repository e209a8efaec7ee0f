"""Host arrays to the device, and tensors back, without waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from service.runner.pinned_memory import pinned
from service.runner.staging import StagingTurn

_ALIGNMENT = 16  # bytes: as torch's own allocations, so that Triton compiles a kernel for one alignment only

Array = npt.NDArray[Any]


def to_device(arrays: Mapping[str, Array], device: torch.device, turn: StagingTurn | None = None) -> dict[str, Tensor]:
    """The arrays as tensors on `device`, in one copy. On the CPU they share the arrays' memory. turn: the iteration's,
    whose pinned memory is used; None: fresh pinned memory."""
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


class AsyncCopy:
    """Device tensors on their way to the host, behind the work that computes them."""

    def __init__(self, *tensors: Tensor) -> None:
        self._copied: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            tensors = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
            self._copied = torch.cuda.Event(blocking=True)  # a waiting thread sleeps
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
