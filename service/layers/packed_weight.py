"""A weight matrix as a CPU multiplies by it fastest. Plain F.linear is the twin.

oneDNN wants weights in blocks of its own; F.linear rearranges them at every call, this once. For a single row
(decode of one sequence) torch's own matrix-vector product of bf16 is faster still, on the plain weight: it reads at
the memory's speed. It is reached with oneDNN switched off for the call. Both ways are torch's private or unadvertised
ones: they are tried before they are used, and the second one is timed.

Measured on a 2-core machine with AVX512-bf16, torch 2.13, weights not in its caches, one row, microseconds
(F.linear / packed / one-row): 3072x576 235 / 168 / 135, 576x1536 120 / 91 / 56, 960x576 115 / 66 / 42.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_TIMED_BYTES = 1 << 29


class PackedWeight:
    """`packed(x, bias)` is F.linear(x, weight, bias), for inference. `plain`: the weight as it was, for single rows."""

    __slots__ = ("_packed", "_plain")

    def __init__(self, packed: Tensor, plain: Tensor | None) -> None:
        self._packed = packed
        self._plain = plain

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._plain is not None and x.shape[0] == 1:
            return _one_row_linear(x, self._plain, bias)
        return _packed_linear(x, self._packed, bias)


def pack_weight(weight: Tensor, keeps_plain: bool) -> PackedWeight | None:
    """The weight packed, or None where that is not possible (a GPU, another dtype, a torch without oneDNN).

    keeps_plain: the plain weight may stay in memory beside the packed one; `choose_one_row_way` has the last word.
    """
    if weight.device.type != "cpu" or not can_pack(weight.dtype):
        return None
    plain = weight.detach()
    # fp32 packed reads at the memory's speed already.
    return PackedWeight(_pack(plain), plain if keeps_plain and weight.dtype is torch.bfloat16 else None)


def choose_one_row_way(weights: Sequence[PackedWeight]) -> bool:
    """Time one row through a model's weights both ways; unless the plain ones win, they are given up.

    The answer depends on the machine and on whether the weights fit its caches, so the model's own are timed (the
    first half GiB of them). Returns whether the plain ones are kept.
    """
    sample = _some_of([w for w in weights if w._plain is not None])
    is_faster = bool(sample) and _one_row_is_faster(sample)
    if not is_faster:
        for weight in weights:
            weight._plain = None
    return is_faster


def _some_of(weights: Sequence[PackedWeight]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(one row, packed, plain) of the first weights."""
    sample, num_bytes = [], 0
    for weight in weights:
        plain = weight._plain
        assert plain is not None
        sample.append((torch.ones(1, plain.shape[1], dtype=plain.dtype), weight._packed, plain))
        num_bytes += plain.numel() * plain.element_size()
        if num_bytes >= _TIMED_BYTES:
            break
    return sample


def _one_row_is_faster(sample: Sequence[tuple[Tensor, Tensor, Tensor]]) -> bool:
    def one_row() -> None:
        for x, _, plain in sample:
            _one_row_linear(x, plain, None)

    def packed() -> None:
        for x, weight, _ in sample:
            _packed_linear(x, weight, None)

    try:
        return _least_seconds(one_row) < _least_seconds(packed)
    except (AttributeError, RuntimeError, TypeError):
        return False


def _least_seconds(work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(4):
        start_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start_s)
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


def _one_row_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The switch is the process's; another thread's operation in this moment is right too, at another speed."""
    torch._C._set_mkldnn_enabled(False)
    try:
        return F.linear(x, weight, bias)
    finally:
        torch._C._set_mkldnn_enabled(True)
