"""LayerNorm as a module, with the residual stream carried beside the activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels.layer_norm import add_layer_norm, layer_norm
from service.layers.layer import Layer


class ResidualLayerNorm(Layer):
    """Adds x to the residual stream and norms it: (norm(x + residual), x + residual). weight, bias [size].

    residual None: x is the stream's beginning. A residual that is passed in may be overwritten.
    """

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            return layer_norm(x, self.weight, self.bias, self.eps), x
        return add_layer_norm(x, residual, self.weight, self.bias, self.eps)

    def checkpoint_tensors(self, name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": self.weight.detach(), f"{name}.bias": self.bias.detach()}
