"""A weight matrix as a CPU multiplies by it fastest. Plain F.linear is the twin.

oneDNN wants weights in blocks of its own; F.linear rearranges them at every call, this once. For few rows, as decode
has them, a compiled loop over a form of its own is faster still (kernels/loops/few_rows_linear.py): it reads at the
memory's speed and multiplies meanwhile. Where its rows are not too wide for the caches it is for many rows too.
oneDNN's way is an unadvertised one of torch's: it is tried before it is used. The loop is timed.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from kernels.cpu_loops import FewRowsLinear, loops_for

_TIMED_BYTES = 1 << 29
_TIMED_ROWS = (1, 16)
FEW_ROWS = 32
"""Up to so many rows go through the loops, where a weight has both forms."""
_MANY_ROWS, _MANY_ROWS_BYTES = 256, 1 << 25
_MAY_COST = 1.2
"""Steps of loops alone can be recorded (kernels/loops/recording.py), which saves what timing the products does not
show."""


class PackedWeight:
    """`packed(x, bias)` is F.linear(x, weight, bias), for inference. By oneDNN's form, the loops' form, or both: then
    few rows go through the loops."""

    __slots__ = ("_packed", "_panels")

    def __init__(self, packed: Tensor | None, panels: FewRowsLinear | None) -> None:
        self._packed = packed
        self._panels = panels

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._panels is not None and (self._packed is None or 0 < x.shape[0] <= FEW_ROWS):
            return self._panels(x, bias)
        assert self._packed is not None
        return _packed_linear(x, self._packed, bias)


def pack_weight(weight: Tensor, in_two_forms: bool) -> PackedWeight | None:
    """The weight packed, or None where that is not possible (a GPU, another dtype, a torch without oneDNN).

    in_two_forms: memory may hold both; `choose_forms` has the last word.
    """
    if weight.device.type != "cpu" or not can_pack(weight.dtype):
        return None
    plain = weight.detach()
    loops = loops_for(plain) if in_two_forms else None
    return PackedWeight(_pack(plain), None if loops is None else loops.few_rows_linear(plain))


def choose_forms(weights: Sequence[PackedWeight]) -> bool:
    """Time few rows through a model's weights in both forms: unless the loops win, their form is given up. If they win
    with many rows too, oneDNN's is.

    The answer depends on the machine and on whether the weights fit its caches, so the model's own are timed (the
    first half GiB of them). Returns whether the loops' form is kept.
    """
    sample = _in_two_forms(weights, _TIMED_BYTES)
    if not sample or not _loops_win(sample, _TIMED_ROWS, _MAY_COST):
        for weight in _in_two_forms(weights, math.inf):
            weight._panels = None
        return False
    if _loops_win(_in_two_forms(weights, _MANY_ROWS_BYTES), (_MANY_ROWS,), 1.0):
        for weight in _in_two_forms(weights, math.inf):
            weight._packed = None
    return True


def _in_two_forms(weights: Sequence[PackedWeight], most_bytes: float) -> list[PackedWeight]:
    """The first weights that are."""
    both, num_bytes = list[PackedWeight](), 0
    for weight in weights:
        if weight._panels is not None and weight._packed is not None and num_bytes < most_bytes:
            both.append(weight)
            num_bytes += weight._panels.num_bytes
    return both


def _loops_win(weights: Sequence[PackedWeight], rows: Sequence[int], may_cost: float) -> bool:
    """may_cost: times what oneDNN takes."""
    inputs = [
        (torch.ones(num_rows, weight._panels.num_inputs, dtype=torch.bfloat16), weight._panels, weight._packed)
        for num_rows in rows
        for weight in weights
        if weight._panels is not None and weight._packed is not None
    ]

    def by_loops() -> None:
        for x, panels, _ in inputs:
            panels(x, None)

    def by_onednn() -> None:
        for x, _, packed in inputs:
            _packed_linear(x, packed, None)

    with _one_thread():
        return _least_seconds(by_loops) < may_cost * _least_seconds(by_onednn)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A thread's processor time says what a form takes, also beside processes that keep the other cores busy."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _least_seconds(work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(3):
        start_s = time.thread_time()
        work()
        seconds.append(time.thread_time() - start_s)
    return min(seconds)


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch and this CPU run packed linears of `dtype`."""
    if dtype not in (torch.bfloat16, torch.float32):
        return False
    try:
        if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        weight, x = torch.eye(16, dtype=dtype), torch.ones(2, 16, dtype=dtype)
        return torch.equal(_packed_linear(x, _pack(weight), None), x)
    except (AttributeError, RuntimeError, TypeError):
        return False


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
    return packed


def _packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return y
