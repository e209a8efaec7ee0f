"""A weight matrix as a CPU multiplies by it fastest. Plain F.linear is the twin.

oneDNN wants weights in blocks of its own; F.linear rearranges them at every call, this once. For few rows, as decode
has them, a compiled loop over a form of its own is faster still (kernels/loops/few_rows_linear.py): it reads at the
memory's speed and multiplies meanwhile. oneDNN's way is an unadvertised one of torch's: it is tried before it is used.
The loop is timed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from kernels.cpu_loops import FewRowsLinear, loops_for

_TIMED_BYTES = 1 << 29
_TIMED_ROWS = (1, 16)
_FEW_ROWS = 32
_MAY_COST = 1.2
"""Steps of loops alone can be recorded (kernels/loops/recording.py), which saves what timing the products does not
show."""


class PackedWeight:
    """`packed(x, bias)` is F.linear(x, weight, bias), for inference. few_rows: the weight's second form."""

    __slots__ = ("_few_rows", "_packed")

    def __init__(self, packed: Tensor, few_rows: FewRowsLinear | None) -> None:
        self._packed = packed
        self._few_rows = few_rows

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._few_rows is not None and 0 < x.shape[0] <= _FEW_ROWS:
            return self._few_rows(x, bias)
        return _packed_linear(x, self._packed, bias)


def pack_weight(weight: Tensor, in_two_forms: bool) -> PackedWeight | None:
    """The weight packed, or None where that is not possible (a GPU, another dtype, a torch without oneDNN).

    in_two_forms: memory may hold both; `choose_few_rows_way` has the last word.
    """
    if weight.device.type != "cpu" or not can_pack(weight.dtype):
        return None
    plain = weight.detach()
    loops = loops_for(plain) if in_two_forms else None
    return PackedWeight(_pack(plain), None if loops is None else loops.few_rows_linear(plain))


def choose_few_rows_way(weights: Sequence[PackedWeight]) -> bool:
    """Time few rows through a model's weights both ways; unless the second form wins, it is given up.

    The answer depends on the machine and on whether the weights fit its caches, so the model's own are timed (the
    first half GiB of them). Returns whether the second form is kept.
    """
    sample = _some_of(weights)
    is_faster = bool(sample) and _few_rows_are_faster(sample)
    if not is_faster:
        for weight in weights:
            weight._few_rows = None
    return is_faster


def _some_of(weights: Sequence[PackedWeight]) -> list[tuple[FewRowsLinear, Tensor]]:
    """Both forms of the first weights that have them."""
    sample, num_bytes = [], 0
    for weight in weights:
        if weight._few_rows is not None and num_bytes < _TIMED_BYTES:
            sample.append((weight._few_rows, weight._packed))
            num_bytes += weight._few_rows.num_bytes
    return sample


def _few_rows_are_faster(sample: Sequence[tuple[FewRowsLinear, Tensor]]) -> bool:
    inputs = [
        (torch.ones(num_rows, few_rows.num_inputs, dtype=torch.bfloat16), few_rows, packed)
        for num_rows in _TIMED_ROWS
        for few_rows, packed in sample
    ]

    def second_form() -> None:
        for x, few_rows, _ in inputs:
            few_rows(x, None)

    def first_form() -> None:
        for x, _, packed in inputs:
            _packed_linear(x, packed, None)

    with _one_thread():
        return _least_seconds(second_form) < _MAY_COST * _least_seconds(first_form)


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
