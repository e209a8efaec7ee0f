"""The three ways in which a kernel's test body runs: reference, Triton's interpreter, GPU.

    @pytest.mark.parametrize("lane", LANES)
    def test_something(lane):
        x = lane.put(torch.randn(17, 8))
        got = lane(op, op_triton)(x)

The interpreter needs TRITON_INTERPRET=1; without it a kernel on CPU tensors raises, so nothing passes by mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor


@dataclass(frozen=True)
class Lane:
    name: str

    @property
    def device(self) -> str:
        return "cuda" if self.name == "gpu" else "cpu"

    def put(self, tensor: Tensor) -> Tensor:
        """A copy on the lane's device."""
        return tensor.to(self.device, copy=True)

    def __call__(self, launcher: Callable[..., Any], triton_launcher: Callable[..., Any]) -> Callable[..., Any]:
        """The launcher is tested where it chooses by itself; only the interpreter must be asked for."""
        return triton_launcher if self.name == "interpret" else launcher


REFERENCE = pytest.param(Lane("reference"), id="reference")
INTERPRET = pytest.param(Lane("interpret"), id="interpret", marks=pytest.mark.interpret)
GPU = pytest.param(Lane("gpu"), id="gpu", marks=pytest.mark.gpu)
LANES = [REFERENCE, INTERPRET, GPU]
