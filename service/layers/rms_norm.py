"""RMSNorm as a module, with the residual stream carried beside the activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels.rms_norm import add_rms_norm, rms_norm
from service.layers.layer import Layer
from service.layers.linear import Product
from service.layers.linear_method import AddedAndNormed


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

    `residual` None means that x is the stream's beginning. A residual handed in may be overwritten. Where x is a
    product that can be added and normed in one launch, the norm's division may be left to the next product.
    """

    weight: nn.Parameter

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor | Product, residual: Tensor | None) -> AddedAndNormed:
        if isinstance(x, Product):
            assert residual is not None
            fused = x.linear.method.add_and_norm(x.x, residual, self.weight, self.eps)
            return add_rms_norm(x.value(), residual, self.weight, self.eps) if fused is None else fused
        if residual is None:
            return rms_norm(x, self.weight, self.eps), x
        return add_rms_norm(x, residual, self.weight, self.eps)
