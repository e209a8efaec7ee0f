"""The feed-forward block of the first Transformers (Vaswani et al. 2017): up, activation, down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch.nn.functional as F
from torch import Tensor

from service.layers.activation import Activation
from service.layers.layer import Layer
from service.layers.linear import Linear
from service.layers.shard import even_share
from service.layers.tensor_parallel import TensorParallel

_FUNCTIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "silu": F.silu}
)


class Mlp(Layer):
    """x [T, hidden_size] -> [T, hidden_size]."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: Activation, *, bias: bool) -> None:
        super().__init__()
        self.up = Linear(hidden_size, intermediate_size, bias=bias)
        self.activate = _FUNCTIONS[activation]
        self.down = Linear(intermediate_size, hidden_size, bias=bias)

    def shard(self, parallel: TensorParallel) -> None:
        kept = even_share(self.down.in_features, parallel)
        self.up.shard_outputs(kept)
        self.down.shard_inputs(kept, parallel)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activate(self.up(x)))
