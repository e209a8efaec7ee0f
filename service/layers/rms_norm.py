"""RMSNorm as a module, with the residual stream carried beside the activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels.fp8_rows import fp8_add_rms_norm
from kernels.rms_norm import add_rms_norm, rms_norm
from service.layers.layer import Layer
from service.layers.linear import Linear, Product
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
    """Adds x to the residual stream and norms it: (norm(x + residual), x + residual). weight [size].

    residual None: x is the stream's beginning. A residual that is passed in may be overwritten. If x is a Product that
    can be added and normed in one launch, the norm's division may be left to the next product. behind: the product that
    takes the norm's result, if it is the only one. If it rounds rows to fp8, they are made so.
    """

    weight: nn.Parameter

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor | Product, residual: Tensor | None, behind: Linear | None = None) -> AddedAndNormed:
        if isinstance(x, Product):
            assert residual is not None
            fused = x.linear.method.add_and_norm(x.x, residual, self.weight, self.eps)
            if fused is not None:
                return fused
            x = x.value()
        if residual is None:
            return rms_norm(x, self.weight, self.eps), x
        if behind is not None and behind.method.takes_fp8(x.shape[0]):
            return fp8_add_rms_norm(x, residual, self.weight, self.eps)
        return add_rms_norm(x, residual, self.weight, self.eps)
