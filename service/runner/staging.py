"""Host arrays to the device and ids back, without waiting.

A copy from or to pinned memory runs while the host goes on; torch's allocator of pinned memory hands a buffer out again
only after the copies that used it.
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


def to_device(arrays: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """The arrays as tensors on `device`, in one copy. On the CPU they share the arrays' memory."""
    if device.type == "cpu":
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    offsets, num_bytes = layout({name: array.nbytes for name, array in arrays.items()})
    staged = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    memory = staged.numpy()
    for name, array in arrays.items():
        part = memory[offsets[name] : offsets[name] + array.nbytes]
        part.view(array.dtype).reshape(array.shape)[...] = array
    there = staged.to(device, non_blocking=True)
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
    """Tensors at one place on the device for good, all rewritten by one copy: what a CUDA graph reads.

    host: an array for each tensor; what is written there, `send` takes to the device.
    """

    def __init__(self, like: Mapping[str, Array], device: torch.device) -> None:
        offsets, num_bytes = layout({name: array.nbytes for name, array in like.items()})
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._tensors = {name: part_of(self._buffer, offsets[name], array) for name, array in like.items()}
        self._memory = np.zeros(num_bytes, np.uint8)
        self.host: Mapping[str, Array] = {
            name: self._memory[offsets[name] : offsets[name] + array.nbytes].view(array.dtype)
            for name, array in like.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def send(self) -> None:
        """The arrays are copied behind what the device has still to do; they may be written again at once."""
        staged = torch.empty(self._buffer.shape, dtype=torch.uint8, pin_memory=self._buffer.is_cuda)
        staged.numpy()[:] = self._memory
        self._buffer.copy_(staged, non_blocking=True)


class OnTheirWay:
    """Tensors of the device, being copied to the host behind the work that makes them."""

    def __init__(self, *tensors: Tensor) -> None:
        self._copied: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            tensors = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
            self._copied = _sleeping_event()
            self._copied.record()
        self._tensors = tensors

    def is_done(self) -> bool:
        """Whether they are there."""
        return self._copied is None or self._copied.query()

    def wait(self) -> tuple[Tensor, ...]:
        """The tensors on the host. Other threads run meanwhile."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._tensors

    def seconds_since(self, began: torch.cuda.Event) -> float:
        """On a GPU, once they are there: from that moment until they were, by the device's clock."""
        assert self._copied is not None, "the device has a clock"
        seconds: float = began.elapsed_time(self._copied) / 1000
        return seconds


class IdsOnTheirWay:
    """[N] int64 ids of the device, on their way to the host; the first `num` of them count."""

    def __init__(self, token_ids: Tensor, num: int) -> None:
        self._copy = OnTheirWay(token_ids)
        self._num = num

    def is_done(self) -> bool:
        """Whether they are there."""
        return self._copy.is_done()

    def wait(self) -> tuple[int, ...]:
        (token_ids,) = self._copy.wait()
        return tuple(token_ids.tolist()[: self._num])

    def seconds_since(self, began: torch.cuda.Event) -> float:
        """`OnTheirWay.seconds_since`."""
        return self._copy.seconds_since(began)


def _sleeping_event() -> torch.cuda.Event:
    """A thread that waits for it sleeps; for the default kind of event it would spin."""
    return torch.cuda.Event(enable_timing=True, blocking=True)


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return _DTYPES[dtype.char]


_DTYPES = {
    np.dtype(np.int64).char: torch.int64,
    np.dtype(np.int32).char: torch.int32,
    np.dtype(np.float32).char: torch.float32,
    np.dtype(np.uint8).char: torch.uint8,
    np.dtype(np.bool_).char: torch.bool,
}
