"""Which step sizes have a CUDA graph: the candidates, except those that a nearby larger size outruns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from kernels.quantized_weight import Weight
from service.layers.gated_mlp import GatedMlp
from service.layers.linear import Linear
from service.layers.projection import Projection
from service.runner.choices.timer import Timer
from service.runner.graph_sizes import GraphSize, outrun

_TIMED_BYTES = 192 << 20  # several times a GPU's L2 cache, so that weights come from memory, as in a step


def kept_sizes(
    projections: Sequence[Projection], mlps: Sequence[GatedMlp], candidates: Sequence[GraphSize], timer: Timer
) -> tuple[GraphSize, ...]:
    """The candidates, in their order, without those that are outrun.

    For each number of tokens, the products of the first layers are timed with their chosen methods. They decide it: a
    size is slow if cuBLAS chose badly for its number of rows. That takes a tenth of the time of a graph of the whole
    step, so all sizes can be timed before the first one is captured.
    """
    products = _products(projections, mlps)
    seconds = {n: _seconds(products, n, timer) for n in sorted({size.num_tokens for size in candidates})}
    slow = set[GraphSize]()
    for is_mixed in (False, True):
        slow |= outrun({size: seconds[size.num_tokens] for size in candidates if size.is_mixed is is_mixed})
    return tuple(size for size in candidates if size not in slow)


def _products(
    projections: Sequence[Projection], mlps: Sequence[GatedMlp]
) -> list[tuple[Callable[[Tensor], object], Weight]]:
    """For each weight, the product by it, with its activation if it has one, and the weight. Without the head, which
    multiplies only the rows that draw."""
    gates: dict[int, Callable[[Tensor], object]] = {id(mlp.gate_up): mlp.gate for mlp in mlps}
    products, num_bytes = list[tuple[Callable[[Tensor], object], Weight]](), 0
    for projection in projections:
        if isinstance(projection, Linear) and num_bytes < _TIMED_BYTES:
            product = gates.get(id(projection), projection.own_product)
            products.append((product, projection.held_weight))
            num_bytes += projection.held_weight.nbytes
    return products


def _seconds(products: Sequence[tuple[Callable[[Tensor], object], Weight]], num_rows: int, timer: Timer) -> float:
    """Seconds of all products together for `num_rows` rows."""
    inputs = {
        weight.shape[1]: torch.randn(num_rows, weight.shape[1], dtype=weight.dtype, device=weight.device)
        for _, weight in products
    }
    return timer([partial(product, inputs[weight.shape[1]]) for product, weight in products])
