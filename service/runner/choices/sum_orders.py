"""The order in which a GPU's kernels and cuBLAS sum (kernels/sum_order.py), and so which of them may multiply each
weight where sums need one fixed order. This is found by comparing results, not by timing. It is a choice all the same,
because equal choices must compute equal bits."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernels.ordered_tiles import may_be_unsplit
from kernels.sum_order import cublas_agrees, few_rows_agree, launch_few_rows
from service.layers.linear_method import KernelRows, OrderedBy, OrderedMethod
from service.layers.projection import Projection

logger = logging.getLogger("headrace")


def launch_sum_orders(projections: Sequence[Projection]) -> None:
    """Launch all that is compared, so that it can be compiled ahead."""
    for method in _of_each_shape(projections).values():
        launch_few_rows(method.weight, method.arrivals)


def with_sum_orders(
    projections: Sequence[Projection], choices: Mapping[str, KernelRows], most_rows: int
) -> Mapping[str, KernelRows]:
    """The choices, with the result for each shape that has an ordered method. most_rows: of a step. Takes some 10 ms
    per shape if what `launch_sum_orders` launches is compiled."""
    methods = _of_each_shape(projections)
    found = {shape: sum_order(method, most_rows) for shape, method in methods.items()}
    for shape, ordered in found.items():
        if ordered is OrderedBy.NOTHING:
            logger.warning(
                "deterministic: %s sums few rows in another order than many here, so it computes one token at a time",
                shape,
            )
        elif ordered is OrderedBy.TILES and may_be_unsplit(*methods[shape].weight.shape):
            logger.warning(
                "deterministic: cuBLAS sums %s in another order than our kernels here, so these compute it", shape
            )
    return {shape: replace(choice, ordered=found.get(shape, choice.ordered)) for shape, choice in choices.items()}


def sum_order(method: OrderedMethod, most_rows: int) -> OrderedBy:
    if not few_rows_agree(method.weight, method.arrivals):
        return OrderedBy.NOTHING
    if may_be_unsplit(*method.weight.shape) and cublas_agrees(method.weight, most_rows):
        return OrderedBy.CUBLAS
    return OrderedBy.TILES


def _of_each_shape(projections: Sequence[Projection]) -> dict[str, OrderedMethod]:
    methods = {each.shape_name: each.own_method.ordered() for each in projections}
    return {shape: method for shape, method in methods.items() if isinstance(method, OrderedMethod)}
