"""Host arrays to the device."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor on `device`. On the CPU they share memory; else it is copied before the call returns."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device)
