"""Checks whether this GPU's products sum in the order of kernels/ordered_linear.py. That is a property of the tensor
cores and of cuBLAS's kernels, which nobody guarantees: it was found by tests, on one kind of GPU with one version of
torch. So every start checks it, with the model's own weights.

    few_rows_agree: the kernels of few rows give rows the same bits as tiles do
    cublas_agrees:  so does cuBLAS, for some numbers of rows (kernels/unsplit_linear.py)

    weight    [N, K]  one that `takes_weight` of kernels/ordered_linear.py accepts, with its values loaded
    arrivals  [A]     as there

x is random. Another order of summation shows in the last bit of one element in some hundred or thousand, and tens of
thousands are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from kernels.ordered_linear import ordered_linear_triton
from kernels.ordered_tiles import TileConfig, num_parts
from kernels.skinny_config import FEW_ROWS, MAX_ROWS
from kernels.unsplit_linear import unsplit_product

_TILES = TileConfig(128, 128, 64, num_warps=8, num_stages=4)
_ROWS = (65, 72, 128, 200, 256, 384, 512, 768, 1024, 2048)
"""cuBLAS uses other kernels for each."""
_MOST_NUMBERS = 1 << 26
"""Most elements of a product that is compared."""


def few_rows_agree(weight: Tensor, arrivals: Tensor) -> bool:
    x = _random_rows(MAX_ROWS, weight)
    return _agree(lambda some: ordered_linear_triton(some, weight, None, arrivals), x, weight, (FEW_ROWS, MAX_ROWS))


def cublas_agrees(weight: Tensor, most_rows: int) -> bool:
    """Checked for up to most_rows, the most rows of a step."""
    num_features, size = weight.shape
    parts, most = num_parts(num_features, size), min(most_rows, _MOST_NUMBERS // num_features)
    rows = [num_rows for num_rows in _ROWS if num_rows <= most]
    if not rows:
        return True
    x = _random_rows(rows[-1], weight)
    return _agree(lambda some: unsplit_product(some, weight, parts), x, weight, rows)


def launch_few_rows(weight: Tensor, arrivals: Tensor) -> None:
    """Launch all that is compared, so that it can be compiled ahead."""
    x = weight.new_empty(MAX_ROWS, weight.shape[1])
    _by_tiles(x, weight)
    for num_rows in (FEW_ROWS, MAX_ROWS):
        ordered_linear_triton(x[:num_rows], weight, None, arrivals)


def _agree(multiply: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor, all_rows: Iterable[int]) -> bool:
    wanted = _by_tiles(x, weight)
    return all(torch.equal(multiply(x[:num_rows]), wanted[:num_rows]) for num_rows in all_rows)


def _by_tiles(x: Tensor, weight: Tensor) -> Tensor:
    return ordered_linear_triton(x, weight, config=_TILES)


def _random_rows(num_rows: int, weight: Tensor) -> Tensor:
    return torch.randn(num_rows, weight.shape[1], device=weight.device).to(weight.dtype)
