"""For which numbers of rows add and norm are fused with the products beside them (layers/add_norm_fusion.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice

from torch import Tensor

from kernels.skinny_config import FEW_ROWS, MAX_ROWS
from service.layers.add_norm_fusion import AddNormFusion
from service.layers.linear_method import Activated, KernelMethod, KernelRows, RowRange
from service.runner.choices.skinny_rows import timed_rows
from service.runner.choices.timer import Timer

_TIMED_FUSIONS = 8


def launch_add_norm(fusion: AddNormFusion) -> None:
    """Launch what is timed: to have it compiled ahead."""
    for num_rows in (n for n in timed_rows(fusion.product.held_weight) if n <= MAX_ROWS):
        x, residual = _tensors(fusion, num_rows)
        unfused(fusion, x, residual)
        fused(fusion, x, residual)


def add_norm_rows(alike: Sequence[AddNormFusion], timer: Timer) -> RowRange:
    """The numbers of rows for which the fused way takes less time, in places of equal shapes.

    To be asked once the methods have all other `KernelRows`, since the unfused way goes by them. Up to FEW_ROWS rows
    are decided at once, and all above together: so a row's result depends on nothing but whether there are more than
    FEW_ROWS. On a CPU, and for types that the kernels do not know, nothing is fused.
    """
    rows = timed_rows(alike[0].product.held_weight)
    few = _gains(alike, [n for n in rows if n <= FEW_ROWS], timer)
    many = _gains(alike, [n for n in rows if FEW_ROWS < n <= MAX_ROWS], timer)
    return RowRange(1 if few else FEW_ROWS + 1, MAX_ROWS if many else FEW_ROWS) if few or many else RowRange()


def unfused(fusion: AddNormFusion, x: Tensor, residual: Tensor) -> Activated:
    """next_product(norm(product(x) + residual)), by a kernel for each. The residual may be overwritten."""
    return fusion.next_product(fusion.norm(fusion.product(x), residual)[0])


def fused(fusion: AddNormFusion, x: Tensor, residual: Tensor) -> Activated:
    """The same by two kernels, for up to MAX_ROWS rows of a product that has a KernelMethod."""
    method, norm = fusion.product.method, fusion.norm
    assert isinstance(method, KernelMethod)
    always = replace(method, choice=KernelRows(add_norm=RowRange(0, MAX_ROWS)))
    added = always.add_and_norm(x, residual, norm.weight, norm.eps)
    assert added is not None
    return fusion.next_product(added[0])


def _gains(alike: Sequence[AddNormFusion], rows: Sequence[int], timer: Timer) -> bool:
    """Whether the fused way takes less time, summed over these numbers of rows."""
    unfused_s, fused_s = 0.0, 0.0
    timed = list(islice(cycle(alike), _TIMED_FUSIONS))
    for num_rows in rows:
        x, residual = _tensors(alike[0], num_rows)
        unfused_s += timer([partial(unfused, fusion, x, residual) for fusion in timed])
        fused_s += timer([partial(fused, fusion, x, residual) for fusion in timed])
    return fused_s < unfused_s


def _tensors(fusion: AddNormFusion, num_rows: int) -> tuple[Tensor, Tensor]:
    """Random x and residual of a place."""
    weight = fusion.product.held_weight
    num_features, size = weight.shape
    residual, x = (weight.new_empty(num_rows, n).normal_() for n in (num_features, size))
    return x, residual
