"""Pinned memory of the host, from and to which a GPU copies while the host computes."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


class PinnedPart:
    """The same memory as a tensor and as an array."""

    __slots__ = ("array", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.array: npt.NDArray[Any] = tensor.numpy()


def pinned(num: int, dtype: torch.dtype) -> PinnedPart:
    """Fresh pinned memory. Torch reuses it only after the copies that used it."""
    return PinnedPart(torch.empty(num, dtype=dtype, pin_memory=True))


def power_of_two(num: int) -> int:
    """The smallest power of two that is at least `num`, which is positive."""
    return 1 << (num - 1).bit_length()
