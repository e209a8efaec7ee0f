"""The gated feed-forward block of Llama (SwiGLU): gate and up in one matrix, silu(gate) * up, down."""

from __future__ import annotations

from torch import Tensor

from kernels.silu_and_mul import silu_and_mul
from service.layers.layer import Layer
from service.layers.linear import Linear


class GatedMlp(Layer):
    """x [T, hidden_size] -> [T, hidden_size]."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool) -> None:
        super().__init__()
        self.gate_up = Linear(hidden_size, intermediate_size, intermediate_size, bias=bias)
        self.down = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(silu_and_mul(self.gate_up(x)))
        return y
