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


def launch_gated(mlps: Sequence[GatedMlp]) -> None:
    """Launch what is timed, once for each shape: to have it compiled ahead."""
    for shape, alike in _by_shape(mlps).items():
        gated_linear(alike[0].gate_up.weight.new_empty(MAX_ROWS, shape[1]), alike[0].gate_up.weight)


def choose_gated_rows(mlps: Sequence[GatedMlp]) -> None:
    """Once each Linear's `skinny_rows` are chosen. On a CPU, on older GPUs, and where the kernel does not know the
    activation, a bias or the type, nothing changes. On a GPU some milliseconds a shape, beside compiling."""
    for alike in _by_shape(mlps).values():
        rows = _better_rows(alike)
        for mlp in alike:
            mlp.gated_rows = rows


def _by_shape(mlps: Sequence[GatedMlp]) -> dict[torch.Size, list[GatedMlp]]:
    """Those that the kernel knows."""
    by_shape: dict[torch.Size, list[GatedMlp]] = {}
    for mlp in mlps:
        if _is_known(mlp):
            by_shape.setdefault(mlp.gate_up.weight.shape, []).append(mlp)
    return by_shape


def _is_known(mlp: GatedMlp) -> bool:
    weight, is_plain = mlp.gate_up.weight, mlp.is_silu and mlp.gate_up.bias is None
    if not is_plain or not weight.is_cuda or weight.dtype != torch.bfloat16 or not is_copied_by_tiles(weight):
        return False
    return torch.cuda.get_device_capability(weight.device) >= (9, 0)


def _better_rows(alike: Sequence[GatedMlp]) -> range:
    """From MAX_ROWS down as long as the kernel is the faster one: fewer rows gain it nothing, and cuBLAS something."""
    weight_bytes = alike[0].gate_up.weight.nbytes
    timed = list(islice(cycle(alike), max(1, min(_MAX_LAUNCHES, _TIMED_BYTES // weight_bytes))))
    least = MAX_ROWS + 1
    for num_rows in range(MAX_ROWS, alike[0].gate_up.skinny_rows, -_STEP):
        x = _rows(alike[0].gate_up.weight, num_rows)
        if _seconds(GatedMlp.gate_by_kernel, x, timed) >= _seconds(GatedMlp.gate_plainly, x, timed):
            break
        least = num_rows
    return range(least, MAX_ROWS + 1)


def _rows(weight: Tensor, num_rows: int) -> Tensor:
    return weight.new_empty(num_rows, weight.shape[1]).normal_()


def _seconds(gate: Callable[[GatedMlp, Tensor], Tensor], x: Tensor, mlps: Sequence[GatedMlp]) -> float:
    """How long one takes, on the average."""
    gate(mlps[0], x)
    return seconds_by_replay([partial(gate, mlp, x) for mlp in mlps], _ROUNDS)
