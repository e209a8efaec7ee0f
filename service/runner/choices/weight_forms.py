"""The form in which a CPU holds a model's weights (service/layers/packed_weight.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import nn

from service.layers.linear import Linear
from service.layers.linear_method import PackedMethod
from service.layers.packed_weight import PackedWeight, WeightForm
from service.layers.projection import Projection
from service.runner.choices.timer import Timer

_TIMED_BYTES = 1 << 29
_TIMED_ROWS = (1, 16)
_MANY_ROWS, _MANY_ROWS_BYTES = 256, 1 << 25
_MAY_COST = 1.2
"""The loops may take this many times as long as oneDNN: steps that consist of loops only can be recorded
(kernels/loops/recording.py), and timing the products does not show what that saves."""


def choose_forms(projections: Sequence[Projection], timer: Timer, *, in_two_forms: bool) -> Mapping[str, WeightForm]:
    """Pack all weights, and time few rows with both forms. Unless the loops win, their form is dropped. If they win
    with many rows too, oneDNN's form is dropped.

    The answer depends on the machine and on whether the weights fit into its caches, so the model's own weights are
    timed (the first half GiB). in_two_forms: memory may hold both forms; if not, nothing is timed.
    """
    for projection in projections:
        projection.pack(WeightForm.BOTH if in_two_forms else WeightForm.ONEDNN)
    methods = [projection.own_method for projection in projections]
    packed = [method.packed for method in methods if isinstance(method, PackedMethod)]
    both = [weight for weight in packed if weight.form is WeightForm.BOTH]
    form = _fastest(both, timer)
    for weight in both:
        weight.keep(form)
    return {projection.shape_name: _form(projection) for projection in projections}


def ordered_forms(projections: Sequence[Projection]) -> Mapping[str, WeightForm]:
    """Pack all weights in the loops' form, whose products sum in one order; where there are no loops, in oneDNN's.
    Nothing is timed."""
    for projection in projections:
        projection.pack(WeightForm.LOOPS)
    return {projection.shape_name: _form(projection) for projection in projections}


def bf16_is_faster(timer: Timer) -> bool:
    """Time a few rows times a matrix in both formats, as in a decode. Takes a few milliseconds."""
    return _seconds_of(torch.bfloat16, timer) < _seconds_of(torch.float32, timer)


def _fastest(both: Sequence[PackedWeight], timer: Timer) -> WeightForm:
    if not both or not _loops_win(_first(both, _TIMED_BYTES), _TIMED_ROWS, _MAY_COST, timer):
        return WeightForm.ONEDNN
    win_with_many = _loops_win(_first(both, _MANY_ROWS_BYTES), (_MANY_ROWS,), 1.0, timer)
    return WeightForm.LOOPS if win_with_many else WeightForm.BOTH


def _loops_win(weights: Sequence[PackedWeight], rows: Sequence[int], may_cost: float, timer: Timer) -> bool:
    """may_cost: the loops may take this many times as long as oneDNN."""
    inputs = [torch.ones(n, weight.num_inputs, dtype=torch.bfloat16) for n in rows for weight in weights]
    loops_s, onednn_s = (
        timer(
            [partial(weight.by_form(form), x, None) for weight, x in zip([*weights] * len(rows), inputs, strict=True)]
        )
        for form in (WeightForm.LOOPS, WeightForm.ONEDNN)
    )
    return loops_s < may_cost * onednn_s


def _first(weights: Sequence[PackedWeight], most_bytes: int) -> list[PackedWeight]:
    """The first weights that together have at least `most_bytes`; at least one."""
    first, num_bytes = list[PackedWeight](), 0
    for weight in weights:
        if num_bytes < most_bytes:
            first.append(weight)
            num_bytes += weight.num_bytes
    return first


def _form(projection: Projection) -> WeightForm:
    choice = projection.method.choice
    assert isinstance(choice, WeightForm)
    return choice


def _seconds_of(dtype: torch.dtype, timer: Timer) -> float:
    linear = Linear(1024, 4096)
    linear.weight = nn.Parameter(torch.zeros(4096, 1024, dtype=dtype), requires_grad=False)
    linear.pack(WeightForm.BOTH)
    x = torch.zeros(4, 1024, dtype=dtype)
    with torch.inference_mode():
        return timer([partial(linear, x)] * 4)
