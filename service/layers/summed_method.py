"""The method of a projection that is split by input features: an all-reduce sums the ranks' products."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from service.layers.linear_method import Activated, AddedAndNormed, LinearChoice, LinearMethod, Normed
from service.layers.tensor_parallel import TensorParallel


@dataclass(frozen=True, slots=True)
class SummedMethod:
    """A LinearMethod. An epilogue needs the complete sum, so it is fused with the all-reduce or not at all.

    base: multiplies by this rank's part of the weight; only one rank adds the bias. is_ordered: the base sums in one
    order. Then nothing is fused with the all-reduce, because the fused one rounds differently for few rows.
    """

    base: LinearMethod
    parallel: TensorParallel
    is_ordered: bool = False

    @property
    def choice(self) -> LinearChoice:
        return self.base.choice

    def multiply(self, x: Normed, *, is_beside: bool = False) -> Tensor:
        return self.parallel.all_reduce(self.base.multiply(x, is_beside=is_beside))

    def add_and_norm(self, x: Activated, residual: Tensor, norm_weight: Tensor, eps: float) -> AddedAndNormed | None:
        if self.is_ordered:
            return None
        return self.parallel.all_reduce_add_norm(self.base.multiply(x), residual, norm_weight, eps)

    def silu_and_mul(self, x: Normed) -> None:
        return None

    def takes_fp8(self, num_rows: int) -> bool:
        return self.base.takes_fp8(num_rows)

    def ordered(self) -> SummedMethod | None:
        base = self.base.ordered()
        return None if base is None else SummedMethod(base, self.parallel, is_ordered=True)
