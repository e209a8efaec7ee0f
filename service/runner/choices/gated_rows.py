"""Which kernels compute gate, up and activation of some hundred rows on a GPU: cuBLAS and the activation's kernel (the
plain twin), or kernels/gated_linear.py. The answer depends on the shape and the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice

import torch
from torch import Tensor

from kernels.gated_linear import MAX_ROWS, is_copied_by_tiles
from kernels.quantized_weight import QuantizedWeight
from service.layers.gated_mlp import GatedMlp
from service.layers.linear_method import KernelMethod, KernelRows, RowRange
from service.runner.choices.timer import Timer

_STEP = 8
"""CUDA graphs of decodes are padded to multiples of this."""
_TIMED_BYTES = 512 << 20  # several times a GPU's L2 cache, and more than one layer's weight
_MAX_LAUNCHES = 64


def launch_gated(mlp: GatedMlp) -> None:
    """Launch all that is timed, so that it can be compiled ahead."""
    if _is_known(mlp):
        weight = mlp.gate_up.held_weight
        gate_by_kernel(mlp, weight.new_empty(MAX_ROWS, weight.shape[1]))


def gated_rows(alike: Sequence[GatedMlp], most_skinny_rows: int, timer: Timer) -> RowRange:
    """The numbers of rows for which gated_linear is faster, in MLPs of equal shapes that use skinny_linear up to
    `most_skinny_rows`.

    Timed from MAX_ROWS downwards for as long as the kernel is faster: with fewer rows it gains nothing, while cuBLAS
    gets faster. An empty range on a CPU, on older GPUs, and where the kernel does not support the activation, a bias,
    the dtype or a quantized weight. Takes some milliseconds.
    """
    if not _is_known(alike[0]):
        return RowRange()
    weight = alike[0].gate_up.held_weight
    timed = list(islice(cycle(alike), max(1, min(_MAX_LAUNCHES, _TIMED_BYTES // weight.nbytes))))
    least = MAX_ROWS + 1
    for num_rows in range(MAX_ROWS, most_skinny_rows, -_STEP):
        x = weight.new_empty(num_rows, weight.shape[1]).normal_()
        kernel_s, plain_s = (timer([partial(gate, mlp, x) for mlp in timed]) for gate in (gate_by_kernel, gate_plainly))
        if kernel_s >= plain_s:
            break
        least = num_rows
    return RowRange(least, MAX_ROWS) if least <= MAX_ROWS else RowRange()


def gate_plainly(mlp: GatedMlp, x: Tensor) -> Tensor:
    return mlp.activate(mlp.gate_up(x))


def gate_by_kernel(mlp: GatedMlp, x: Tensor) -> Tensor:
    method = mlp.gate_up.method
    assert isinstance(method, KernelMethod)
    gated = replace(method, choice=KernelRows(gated=RowRange(1, MAX_ROWS))).silu_and_mul(x)
    assert gated is not None
    return gated


def _is_known(mlp: GatedMlp) -> bool:
    weight, is_plain = mlp.gate_up.held_weight, mlp.is_silu and mlp.gate_up.bias is None
    if isinstance(weight, QuantizedWeight) or not is_plain or not weight.is_cuda:
        return False
    if weight.dtype != torch.bfloat16 or not is_copied_by_tiles(weight):
        return False
    return torch.cuda.get_device_capability(weight.device) >= (9, 0)
