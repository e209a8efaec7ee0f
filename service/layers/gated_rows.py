"""Who computes gate, up and activation of some hundred rows on a GPU: cuBLAS and the activation's kernel, which are the
plain twin, or kernels/gated_linear.py.

The answer depends on the shape and the device, so at load each shape of a model is timed over the model's own weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice

import torch
from torch import Tensor

from kernels.gated_linear import MAX_ROWS, gated_linear, is_copied_by_tiles
from kernels.replay_timing import seconds_by_replay
from service.layers.gated_mlp import GatedMlp

_STEP = 8
"""CUDA graphs of decodes are padded to multiples of it."""
_TIMED_BYTES = 512 << 20  # several times a GPU's L2 cache, and more than one layer's weight
_MAX_LAUNCHES = 64
_ROUNDS = 5


def launch_gated(mlp: GatedMlp) -> None:
    """Launch what is timed: to have it compiled ahead."""
    if _is_known(mlp):
        weight = mlp.gate_up.plain_weight
        gated_linear(weight.new_empty(MAX_ROWS, weight.shape[1]), weight)


def gated_rows(mlps: Sequence[GatedMlp], most_skinny_rows: int) -> range:
    """The numbers of rows for which gated_linear is the better one, in MLPs of equal shapes that are multiplied by
    skinny_linear up to `most_skinny_rows`.

    From MAX_ROWS down as long as the kernel is the faster one: fewer rows gain it nothing, and cuBLAS something. None
    on a CPU, on older GPUs, and where the kernel does not know the activation, a bias or the type. Takes some
    milliseconds.
    """
    first = mlps[0]
    if not _is_known(first):
        return range(0)
    weight = first.gate_up.plain_weight
    timed = list(islice(cycle(mlps), max(1, min(_MAX_LAUNCHES, _TIMED_BYTES // weight.nbytes))))
    least = MAX_ROWS + 1
    for num_rows in range(MAX_ROWS, most_skinny_rows, -_STEP):
        x = weight.new_empty(num_rows, weight.shape[1]).normal_()
        if _seconds(gate_by_kernel, x, timed) >= _seconds(gate_plainly, x, timed):
            break
        least = num_rows
    return range(least, MAX_ROWS + 1)


def gate_plainly(mlp: GatedMlp, x: Tensor) -> Tensor:
    return mlp.activate(mlp.gate_up(x))


def gate_by_kernel(mlp: GatedMlp, x: Tensor) -> Tensor:
    return gated_linear(x, mlp.gate_up.plain_weight)


def _is_known(mlp: GatedMlp) -> bool:
    weight, is_plain = mlp.gate_up.plain_weight, mlp.is_silu and mlp.gate_up.bias is None
    if not is_plain or not weight.is_cuda or weight.dtype != torch.bfloat16 or not is_copied_by_tiles(weight):
        return False
    return torch.cuda.get_device_capability(weight.device) >= (9, 0)


def _seconds(gate: Callable[[GatedMlp, Tensor], Tensor], x: Tensor, mlps: Sequence[GatedMlp]) -> float:
    """How long one takes, on the average."""
    gate(mlps[0], x)
    return seconds_by_replay([partial(gate, mlp, x) for mlp in mlps], _ROUNDS)
