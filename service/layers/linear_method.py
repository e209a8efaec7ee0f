"""How a weight is multiplied by, which each projection owns: plainly, by kernels for few rows, or packed for a CPU.

A product may be asked for together with what stands behind it: the residual stream's sum and norm, or SiLU and the
gate's product. A method that has no kernel for both at once declines (None), and who asked takes one after the other.
So norms and MLPs know no weights, and a new form of weights is a new method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from kernels.gated_linear import gated_linear
from kernels.linear_add_norm import DeferredNorm, linear_add_norm
from kernels.norm_linear import norm_linear
from kernels.skinny_linear import skinny_linear
from service.layers.packed_weight import PackedWeight

Normed = Tensor | DeferredNorm
"""What a product behind a norm takes, [T, in_features]: the norm may have left its division to the product."""


class LinearMethod(Protocol):
    """x W^T + b for a weight [out_features, in_features] and a bias [out_features] or None, which the method holds."""

    def multiply(self, x: Normed) -> Tensor:
        """[T, out_features]."""
        ...

    def add_and_norm(self, x: Tensor, residual: Tensor, norm_weight: Tensor, eps: float) -> AddedAndNormed | None:
        """(norm(multiply(x) + residual), multiply(x) + residual), or None; then nothing was computed."""
        ...

    def silu_and_mul(self, x: Normed) -> Tensor | None:
        """silu(gate) * up of the product's halves, [T, out_features / 2], or None; then nothing was computed."""
        ...


AddedAndNormed = tuple[Normed, Tensor]


class PlainMethod:
    """torch's: the twin of the others."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def multiply(self, x: Normed) -> Tensor:
        return F.linear(_divided(x), self._weight, self._bias)

    def add_and_norm(self, x: Tensor, residual: Tensor, norm_weight: Tensor, eps: float) -> None:
        return None

    def silu_and_mul(self, x: Normed) -> None:
        return None


@dataclass(frozen=True, slots=True)
class KernelRows:
    """For which numbers of rows a kernel of ours takes cuBLAS's place.

    skinny: up to so many go through skinny_linear. deferred: these are added to the residual stream in the product's
    launch, which leaves the norm's division to the product behind it; 64 at most. gated: these go through gated_linear.
    """

    skinny: int = 0
    deferred: range = range(0)
    gated: range = range(0)


@dataclass(frozen=True, slots=True, eq=False)
class KernelMethod:
    """On a GPU: cuBLAS, and kernels of ours where they are faster (service/layers/kernel_choices.py).

    arrivals: counters that all weights of a device share (kernels/skinny_linear.py).
    """

    weight: Tensor
    bias: Tensor | None
    arrivals: Tensor
    rows: KernelRows = KernelRows()

    def multiply(self, x: Normed) -> Tensor:
        if isinstance(x, DeferredNorm):
            return norm_linear(x, self.weight, self.bias, self.arrivals)
        if x.shape[0] <= self.rows.skinny:
            return skinny_linear(x, self.weight, self.bias, self.arrivals)
        return F.linear(x, self.weight, self.bias)

    def add_and_norm(self, x: Tensor, residual: Tensor, norm_weight: Tensor, eps: float) -> AddedAndNormed | None:
        if x.shape[0] not in self.rows.deferred:
            return None
        return linear_add_norm(x, self.weight, self.bias, residual, norm_weight, eps, self.arrivals)

    def silu_and_mul(self, x: Normed) -> Tensor | None:
        if isinstance(x, DeferredNorm):
            return norm_linear(x, self.weight, self.bias, self.arrivals, True)
        return gated_linear(x, self.weight) if x.shape[0] in self.rows.gated else None


class PackedMethod:
    """On a CPU: the weight in forms of its own (service/layers/packed_weight.py)."""

    def __init__(self, packed: PackedWeight, bias: Tensor | None) -> None:
        self._packed = packed
        self._bias = bias

    def multiply(self, x: Normed) -> Tensor:
        return self._packed(_divided(x), self._bias)

    def add_and_norm(self, x: Tensor, residual: Tensor, norm_weight: Tensor, eps: float) -> None:
        return None

    def silu_and_mul(self, x: Normed) -> None:
        return None


def _divided(x: Normed) -> Tensor:
    return x.divided() if isinstance(x, DeferredNorm) else x
