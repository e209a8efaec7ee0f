"""The gated feed-forward block of Llama (SwiGLU) and its kin: gate and up in one matrix, act(gate) * up, down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from torch import Tensor

from kernels.gated_linear import gated_linear
from kernels.gelu_and_mul import gelu_and_mul
from kernels.linear_add_norm import DeferredNorm
from kernels.norm_linear import norm_linear
from kernels.silu_and_mul import silu_and_mul
from service.layers.layer import Layer
from service.layers.linear import Branch, Linear, Normed
from service.layers.mlp import Activation

_FUNCTIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": silu_and_mul,
        "gelu": partial(gelu_and_mul, approximate="none"),
        "gelu_tanh": partial(gelu_and_mul, approximate="tanh"),
    }
)


class GatedMlp(Layer):
    """x [T, hidden_size] -> [T, hidden_size]. Any activation but relu, which no model gates with.

    gated_rows: so many rows go through gated_linear (service/layers/gated_rows.py), which knows silu without biases.
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: Activation = "silu", *, bias: bool
    ) -> None:
        super().__init__()
        self.gate_up = Linear(hidden_size, intermediate_size, intermediate_size, bias=bias)
        self.activate = _FUNCTIONS[activation]
        self.is_silu = activation == "silu"
        self.gated_rows = range(0)
        self.down = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Normed) -> Branch:
        return self.down.end_branch(self.gate(x))

    def gate(self, x: Normed) -> Tensor:
        """[T, intermediate_size]: all before `down`."""
        if isinstance(x, DeferredNorm):
            weight, bias, arrivals = self.gate_up.weight, self.gate_up.bias, self.gate_up.arrivals
            return norm_linear(x, weight, bias, arrivals, True) if self.is_silu else self.activate(self.gate_up(x))
        return self.gate_by_kernel(x) if x.shape[0] in self.gated_rows else self.gate_plainly(x)

    def gate_plainly(self, x: Tensor) -> Tensor:
        return self.activate(self.gate_up(x))

    def gate_by_kernel(self, x: Tensor) -> Tensor:
        """For up to MAX_ROWS of kernels/gated_linear.py."""
        return gated_linear(x, self.gate_up.weight)
