"""The gated feed-forward block of Llama (SwiGLU) and similar models: gate and up in one matrix, act(gate) * up,
down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from torch import Tensor

from kernels.fp8_rows import fp8_silu_and_mul
from kernels.gelu_and_mul import gelu_and_mul
from kernels.silu_and_mul import silu_and_mul
from service.layers.activation import Activation
from service.layers.layer import Layer
from service.layers.linear import Linear, Product
from service.layers.linear_method import Activated, Normed
from service.layers.shard import even_share
from service.layers.tensor_parallel import TensorParallel

_FUNCTIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": silu_and_mul,
        "gelu": partial(gelu_and_mul, approximate="none"),
        "gelu_tanh": partial(gelu_and_mul, approximate="tanh"),
    }
)


class GatedMlp(Layer):
    """x [T, hidden_size] -> [T, hidden_size]. Any activation except relu, which no gated model uses.

    is_merged: gate and up are one tensor in a checkpoint.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation = "silu",
        *,
        bias: bool,
        is_merged: bool = False,
    ) -> None:
        super().__init__()
        parts = (2 * intermediate_size,) if is_merged else (intermediate_size, intermediate_size)
        self.gate_up = Linear(hidden_size, *parts, bias=bias)
        self.activate = _FUNCTIONS[activation]
        self.is_silu = activation == "silu"
        self.down = Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Normed) -> Product:
        return Product(self.down, self.gate(x))

    def shard(self, parallel: TensorParallel) -> None:
        size = self.down.in_features
        kept = even_share(size, parallel)
        self.gate_up.shard_outputs(kept, range(size + kept.start, size + kept.stop))
        self.down.shard_inputs(kept, parallel)

    def is_row_invariant(self, like: Tensor) -> bool:
        """Whether each row of the activation gets the same bits as it would alone: true of our loops and kernels, not
        of torch's. like: has the weights' dtype and device."""
        return self.is_silu or like.is_cuda

    def gate(self, x: Normed) -> Activated:
        """[T, intermediate_size]: everything before `down`."""
        fused = self.gate_up.method.silu_and_mul(x) if self.is_silu else None
        if fused is not None:
            return fused
        product = self.gate_up(x)
        if self.is_silu and self.down.method.takes_fp8(product.shape[0]):
            return fp8_silu_and_mul(product)
        return self.activate(product)
