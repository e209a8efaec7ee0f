"""How a projection multiplies if a rank has only some of the weight's inputs: the ranks' products are summed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from service.layers.linear_method import Activated, AddedAndNormed, LinearChoice, LinearMethod, Normed
from service.layers.overlapped_sum import ArrivingNorm, half_of
from service.layers.tensor_parallel import TensorParallel


@dataclass(frozen=True, slots=True)
class SummedMethod:
    """A LinearMethod. An epilogue needs the whole sum, so it is fused with the ranks' sum or with nothing.

    base: the product of this rank's inputs; only one rank adds the bias. is_ordered: the base sums in one order. Then
    nothing is fused with the ranks' sum, because that rounds differently when there are few rows.
    """

    base: LinearMethod
    parallel: TensorParallel
    is_ordered: bool = False

    @property
    def choice(self) -> LinearChoice:
        return self.base.choice

    def multiply(self, x: Normed, *, is_beside: bool = False) -> Tensor:
        return self.parallel.all_reduce(self.base.multiply(x, is_beside=is_beside))

    def add_and_norm(
        self, x: Activated, residual: Tensor, norm_weight: Tensor, eps: float, *, in_parts: bool = False
    ) -> AddedAndNormed | None:
        if self.is_ordered:
            return None
        if in_parts and self.takes_parts and isinstance(x, Tensor) and self._overlaps(len(x)):
            return self._in_halves(x, residual, norm_weight, eps), residual
        return self.parallel.all_reduce_add_norm(self.base.multiply(x), residual, norm_weight, eps)

    def _overlaps(self, num_rows: int) -> bool:
        return 0 < self.parallel.overlap_tokens <= num_rows

    def _in_halves(self, x: Tensor, residual: Tensor, norm_weight: Tensor, eps: float) -> ArrivingNorm:
        half = half_of(len(x))
        return ArrivingNorm(
            tuple(
                self.parallel.begin_add_norm(self.base.multiply(x[rows]), residual[rows], norm_weight, eps)
                for rows in (slice(half), slice(half, None))
            )
        )

    def silu_and_mul(self, x: Normed) -> None:
        return None

    def takes_fp8(self, num_rows: int) -> bool:
        return self.base.takes_fp8(num_rows)

    @property
    def takes_parts(self) -> bool:
        return self.base.takes_parts

    def ordered(self) -> SummedMethod | None:
        base = self.base.ordered()
        return None if base is None else SummedMethod(base, self.parallel, is_ordered=True)
