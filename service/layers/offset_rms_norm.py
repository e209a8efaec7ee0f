"""RMS norms that scale by 1 + weight (Gemma). The sum is kept in fp32: 16 bits would lose the weight's last bits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels.rms_norm import add_rms_norm, rms_norm
from service.layers.layer import Layer
from service.layers.linear import Linear, Product
from service.layers.linear_method import AddedAndNormed
from service.layers.rms_norm import ResidualRMSNorm


class OffsetRMSNorm(Layer):
    """Norm over the last dimension. weight [size], as in the checkpoint. scale [size] fp32: 1 + weight, made by
    `finish_reading`."""

    weight: nn.Parameter
    scale: Tensor

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def finish_reading(self) -> None:
        """The weight has been read: make `scale`."""
        self.scale = 1.0 + self.weight.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.scale, self.eps)


class ResidualOffsetRMSNorm(ResidualRMSNorm):
    """Like ResidualRMSNorm, with OffsetRMSNorm's scale. Nothing is fused with it."""

    scale: Tensor

    def finish_reading(self) -> None:
        """The weight has been read: make `scale`."""
        self.scale = 1.0 + self.weight.detach().float()

    def forward(self, x: Tensor | Product, residual: Tensor | None, behind: Linear | None = None) -> AddedAndNormed:
        value = x.value() if isinstance(x, Product) else x
        if residual is None:
            return rms_norm(value, self.scale, self.eps), value
        return add_rms_norm(value, residual, self.scale, self.eps)
