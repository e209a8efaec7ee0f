"""For which numbers of rows add and norm are fused with the products beside them (layers/add_norm_fusion.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement, cycle, islice, pairwise

from torch import Tensor

from kernels.quantized_weight import QuantizedWeight
from kernels.register_product import MOST_ROWS as MOST_REGISTER_ROWS
from kernels.skinny_config import FEW_ROWS, MAX_ROWS
from service.layers.add_norm_fusion import AddNormFusion
from service.layers.linear_method import Activated, KernelMethod, KernelRows, RowRange
from service.runner.choices.skinny_rows import timed_rows
from service.runner.choices.timer import Timer

_TIMED_FUSIONS = 8


def launch_add_norm(fusion: AddNormFusion) -> None:
    """Launch all that is timed, so that it can be compiled ahead."""
    for num_rows in (n for n in timed_rows(fusion.product.held_weight) if n <= MAX_ROWS):
        x, residual = _tensors(fusion, num_rows)
        unfused(fusion, x, residual)
        fused(fusion, x, residual)


def add_norm_rows(alike: Sequence[AddNormFusion], timer: Timer) -> RowRange:
    """The numbers of rows for which the fused way takes less time, for fusions of equal shapes.

    Call it when the methods have all other `KernelRows`, because the unfused way uses them. Rows that one kernel serves
    are decided together: up to FEW_ROWS, and all above; for quantized weights also up to MOST_REGISTER_ROWS. So a row's
    result depends only on which of these ranges its batch is in. The result is the contiguous range that gains the
    most. On a CPU, and for dtypes that the kernels do not support, nothing is fused.
    """
    weight = alike[0].product.held_weight
    bounds = [FEW_ROWS, MAX_ROWS]
    if isinstance(weight, QuantizedWeight):
        bounds.insert(0, MOST_REGISTER_ROWS)
    ranges = [RowRange(first + 1, last) for first, last in pairwise([0, *bounds])]
    gains = [_gain(alike, [n for n in timed_rows(weight) if n in each], timer) for each in ranges]
    best, most = RowRange(), 0.0
    for first, last in combinations_with_replacement(range(len(ranges)), 2):
        if sum(gains[first : last + 1]) > most:
            best, most = RowRange(ranges[first].first, ranges[last].last), sum(gains[first : last + 1])
    return best


def unfused(fusion: AddNormFusion, x: Tensor, residual: Tensor) -> Activated:
    """next_product(norm(product(x) + residual)), with one kernel for each. The residual may be overwritten."""
    return fusion.next_product(fusion.norm(fusion.product(x), residual)[0])


def fused(fusion: AddNormFusion, x: Tensor, residual: Tensor) -> Activated:
    """The same with two kernels, for up to MAX_ROWS rows, if the product has a KernelMethod."""
    method, norm = fusion.product.method, fusion.norm
    assert isinstance(method, KernelMethod)
    always = replace(method, choice=KernelRows(add_norm=RowRange(0, MAX_ROWS)))
    added = always.add_and_norm(x, residual, norm.weight, norm.eps)
    assert added is not None
    return fusion.next_product(added[0])


def _gain(alike: Sequence[AddNormFusion], rows: Sequence[int], timer: Timer) -> float:
    """How much less time the fused way takes, in seconds summed over these numbers of rows."""
    gain_s = 0.0
    timed = list(islice(cycle(alike), _TIMED_FUSIONS))
    for num_rows in rows:
        x, residual = _tensors(alike[0], num_rows)
        gain_s += timer([partial(unfused, fusion, x, residual) for fusion in timed])
        gain_s -= timer([partial(fused, fusion, x, residual) for fusion in timed])
    return gain_s


def _tensors(fusion: AddNormFusion, num_rows: int) -> tuple[Tensor, Tensor]:
    """Random x and residual for a fusion."""
    weight = fusion.product.held_weight
    num_features, size = weight.shape
    residual, x = (weight.new_empty(num_rows, n).normal_() for n in (num_features, size))
    return x, residual
