"""How a projection multiplies by its weight: with torch, with kernels for few rows, or with a packed weight on a CPU.

A method may have a fused epilogue: residual add and RMS norm, or SiLU and the product of gate and up. Otherwise it
returns None, and the caller computes one after the other. So norms and MLPs know nothing of weights, and a new form of
weights is a new method.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from kernels.fp8_rows import Fp8Rows
from kernels.gated_linear import MAX_ROWS as MOST_GATED_ROWS
from kernels.gated_linear import gated_linear
from kernels.linear_add_norm import DeferredNorm, linear_add_norm
from kernels.norm_linear import norm_linear
from kernels.ordered_linear import ordered_add_norm, ordered_linear, takes_weight
from kernels.quantized_linear import multiplies_fp8, quantized_linear
from kernels.quantized_weight import QuantizedWeight, Weight
from kernels.skinny_config import MAX_QUANTIZED_ROWS
from kernels.skinny_config import MAX_ROWS as MOST_SKINNY_ROWS
from kernels.skinny_linear import skinny_linear
from service.layers.packed_weight import PackedWeight, WeightForm

Normed = Tensor | DeferredNorm | Fp8Rows
"""The output of a norm, [T, in_features] of the next product. Depending on that product, the norm may have left its
division to it (DeferredNorm), or may have rounded to fp8 (if it `takes_fp8`)."""

Activated = Tensor | Fp8Rows
"""The output of an activation; it may be rounded to fp8 likewise."""

AddedAndNormed = tuple[Normed, Tensor]


@dataclass(frozen=True, slots=True)
class RowRange:
    """Numbers of rows from `first` to `last`, both included; empty if last < first."""

    first: int = 1
    last: int = 0

    def __contains__(self, num_rows: int) -> bool:
        return self.first <= num_rows <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.first <= self.last else "none"


class OrderedBy(StrEnum):
    """What a GPU multiplies with where sums need one order (`LinearMethod.ordered`).

    NOTHING: the kernels that would do it sum in different orders here. TILES: those kernels. CUBLAS: for many rows also
    cuBLAS, which sums here as they do.
    """

    NOTHING = "nothing"
    TILES = "tiles"
    CUBLAS = "cublas"


@dataclass(frozen=True, slots=True)
class KernelRows:
    """For which numbers of rows one of our kernels replaces cuBLAS.

    skinny: up to this many rows use skinny_linear. add_norm: these have residual add and norm as a fused epilogue,
    which leaves the norm's division to the next product. gated: these use gated_linear, which takes plain weights only.
    ordered: the result of comparing sums in one order. Raises ValueError for more rows than a kernel takes.
    """

    skinny: int = 0
    add_norm: RowRange = RowRange()
    gated: RowRange = RowRange()
    ordered: OrderedBy = OrderedBy.TILES

    def __post_init__(self) -> None:
        if self.skinny > MAX_QUANTIZED_ROWS:
            raise ValueError(f"skinny is {self.skinny} rows, above the limit of {MAX_QUANTIZED_ROWS}")
        if self.add_norm.last > MOST_SKINNY_ROWS:
            raise ValueError(f"add_norm is up to {self.add_norm.last} rows, above the limit of {MOST_SKINNY_ROWS}")
        if self.gated.last > MOST_GATED_ROWS:
            raise ValueError(f"gated is up to {self.gated.last} rows, above the limit of {MOST_GATED_ROWS}")

    def fits(self, weight: Weight) -> bool:
        """Whether the kernels take this many rows of the weight."""
        if isinstance(weight, QuantizedWeight):
            return self.gated.first > self.gated.last
        return self.skinny <= MOST_SKINNY_ROWS

    def __str__(self) -> str:
        ordered = "" if self.ordered is OrderedBy.TILES else f", ordered by {self.ordered}"
        return f"skinny up to {self.skinny}, add+norm {self.add_norm}, gated {self.gated}{ordered}"


LinearChoice = KernelRows | WeightForm
"""What was chosen for a weight, on a GPU or on a CPU. Equal weights and choices make equal methods."""


class LinearMethod(Protocol):
    """x W^T + b for a weight [out_features, in_features], plain or quantized, and a bias [out_features] or None. The
    method holds both."""

    @property
    def choice(self) -> LinearChoice:
        """The choice that the method was made from."""
        ...

    def multiply(self, x: Normed, *, is_beside: bool = False) -> Tensor:
        """[T, out_features]. is_beside: a lora_shrink of x was launched just before and may still run."""
        ...

    def add_and_norm(self, x: Activated, residual: Tensor, norm_weight: Tensor, eps: float) -> AddedAndNormed | None:
        """(norm(multiply(x) + residual), multiply(x) + residual); or None, and nothing was computed."""
        ...

    def silu_and_mul(self, x: Normed) -> Tensor | None:
        """silu(gate) * up of the product's halves, [T, out_features / 2]; or None, and nothing was computed."""
        ...

    def takes_fp8(self, num_rows: int) -> bool:
        """Whether `multiply` rounds this many rows to fp8. Then it also takes Fp8Rows, which the kernel that computes x
        can make in the same launch."""
        ...

    def ordered(self) -> LinearMethod | None:
        """A method of the same weight that sums in one order, so that a row's bits depend on that row only, whatever
        other rows there are. None: there is none, or it is not known."""
        ...


class _Unfused:
    """Declines every epilogue."""

    def add_and_norm(self, x: Activated, residual: Tensor, norm_weight: Tensor, eps: float) -> None:
        return None

    def silu_and_mul(self, x: Normed) -> None:
        return None

    def takes_fp8(self, num_rows: int) -> bool:
        return False


class PlainMethod(_Unfused):
    """torch's product: the plain twin of the others."""

    choice = WeightForm.PLAIN

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def multiply(self, x: Normed, *, is_beside: bool = False) -> Tensor:
        return F.linear(divided(x), self._weight, self._bias)

    def ordered(self) -> None:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class KernelMethod:
    """On a GPU: cuBLAS, and our kernels where they are faster (service/runner/choices/kernel_rows.py). For quantized
    weights kernels/quantized_linear.py takes cuBLAS's place.

    arrivals: counters shared by all weights of a device (kernels/skinny_linear.py).
    """

    weight: Weight
    bias: Tensor | None
    arrivals: Tensor
    choice: KernelRows = KernelRows()

    def multiply(self, x: Normed, *, is_beside: bool = False) -> Tensor:
        if isinstance(x, DeferredNorm):
            return norm_linear(x, self.weight, self.bias, self.arrivals)
        if isinstance(x, Fp8Rows):
            assert isinstance(self.weight, QuantizedWeight)
            return quantized_linear(x, self.weight, self.bias, self.arrivals)
        if x.shape[0] <= self.choice.skinny:
            return skinny_linear(x, self.weight, self.bias, self.arrivals, is_beside=is_beside)
        if isinstance(self.weight, QuantizedWeight):
            return quantized_linear(x, self.weight, self.bias, self.arrivals)
        return F.linear(x, self.weight, self.bias)

    def add_and_norm(self, x: Activated, residual: Tensor, norm_weight: Tensor, eps: float) -> AddedAndNormed | None:
        if isinstance(x, Fp8Rows) or x.shape[0] not in self.choice.add_norm:
            return None
        return linear_add_norm(x, self.weight, self.bias, residual, norm_weight, eps, self.arrivals)

    def silu_and_mul(self, x: Normed) -> Tensor | None:
        if isinstance(x, DeferredNorm):
            return norm_linear(x, self.weight, self.bias, self.arrivals, True)
        if isinstance(x, Fp8Rows) or x.shape[0] not in self.choice.gated:
            return None
        assert isinstance(self.weight, Tensor)
        return gated_linear(x, self.weight)

    def takes_fp8(self, num_rows: int) -> bool:
        if num_rows <= self.choice.skinny or num_rows in self.choice.add_norm:
            return False
        return isinstance(self.weight, QuantizedWeight) and multiplies_fp8(self.weight)

    def ordered(self) -> OrderedMethod | None:
        if self.choice.ordered is OrderedBy.NOTHING:
            return None
        if isinstance(self.weight, QuantizedWeight) or not takes_weight(self.weight):
            return None
        by_cublas = self.choice.ordered is OrderedBy.CUBLAS
        return OrderedMethod(self.weight, self.bias, self.arrivals, by_cublas=by_cublas)


@dataclass(frozen=True, slots=True, eq=False)
class OrderedMethod:
    """What `KernelMethod.ordered` returns: on a GPU, sums in one order. arrivals: as there. by_cublas: cuBLAS may
    multiply many rows. Its fusions hold for any number of rows."""

    weight: Tensor
    bias: Tensor | None
    arrivals: Tensor
    by_cublas: bool = False

    choice = KernelRows()

    def multiply(self, x: Normed, *, is_beside: bool = False) -> Tensor:
        assert not isinstance(x, Fp8Rows)
        return ordered_linear(x, self.weight, self.bias, self.arrivals, by_cublas=self.by_cublas)

    def add_and_norm(self, x: Activated, residual: Tensor, norm_weight: Tensor, eps: float) -> AddedAndNormed:
        assert not isinstance(x, Fp8Rows)
        into = self.bias, residual, norm_weight, eps, self.arrivals
        return ordered_add_norm(x, self.weight, *into, by_cublas=self.by_cublas)

    def silu_and_mul(self, x: Normed) -> Tensor | None:
        if not isinstance(x, DeferredNorm) or not self._has_gate:
            return None
        return ordered_linear(x, self.weight, self.bias, self.arrivals, gated=True, by_cublas=self.by_cublas)

    def takes_fp8(self, num_rows: int) -> bool:
        return False

    @property
    def _has_gate(self) -> bool:
        """Whether the rows of both halves can be copied by tiles."""
        return self.weight.shape[0] % 16 == 0

    def ordered(self) -> OrderedMethod:
        return self


class PackedMethod(_Unfused):
    """On a CPU: the weight in packed forms (service/layers/packed_weight.py)."""

    def __init__(self, packed: PackedWeight, bias: Tensor | None) -> None:
        self.packed = packed
        self._bias = bias

    @property
    def choice(self) -> WeightForm:
        return self.packed.form

    def multiply(self, x: Normed, *, is_beside: bool = False) -> Tensor:
        return self.packed(divided(x), self._bias)

    def ordered(self) -> PackedMethod | None:
        """By the loops only: they sum in one order."""
        if self.packed.form is WeightForm.ONEDNN:
            return None
        return PackedMethod(self.packed.by_form(WeightForm.LOOPS), self._bias)


def divided(x: Normed) -> Tensor:
    assert not isinstance(x, Fp8Rows), "only a method that `takes_fp8` is handed them"
    return x.divided() if isinstance(x, DeferredNorm) else x
