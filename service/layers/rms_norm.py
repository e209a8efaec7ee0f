"""RMSNorm as a module, with the residual stream carried beside the activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels.linear_add_norm import linear_add_norm
from kernels.rms_norm import add_rms_norm, rms_norm
from service.layers.layer import Layer
from service.layers.linear import Branch, DeferredProduct, Normed


class RMSNorm(Layer):
    """Norm over the last dimension. weight [size]."""

    weight: nn.Parameter

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class ResidualRMSNorm(Layer):
    """Norm of the residual stream after x joined it: (norm(x + residual), x + residual). weight [size].

    `residual` None means that x is the stream's beginning. A residual handed in may be overwritten. Behind a product
    that was left to it, it leaves its division to the next one.
    """

    weight: nn.Parameter

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Branch, residual: Tensor | None) -> tuple[Normed, Tensor]:
        if isinstance(x, DeferredProduct):
            assert residual is not None
            linear = x.linear
            return linear_add_norm(x.x, linear.weight, linear.bias, residual, self.weight, self.eps, linear.arrivals)
        if residual is None:
            return rms_norm(x, self.weight, self.eps), x
        return add_rms_norm(x, residual, self.weight, self.eps)
