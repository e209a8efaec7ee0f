"""Which kernels multiply by a model's weights on a GPU. The answers depend on the shapes and on the device, so each is
timed with the model's own weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from service.layers.add_norm_fusion import AddNormFusion
from service.layers.gated_mlp import GatedMlp
from service.layers.linear_method import KernelMethod, KernelRows
from service.layers.projection import Projection, use_choices
from service.layers.tensor_parallel import TensorParallel
from service.runner.choices.add_norm_rows import add_norm_rows, launch_add_norm
from service.runner.choices.gated_rows import gated_rows, launch_gated
from service.runner.choices.rank_compiling import compile_for_ranks
from service.runner.choices.skinny_rows import launch_skinny, most_skinny_rows
from service.runner.choices.timer import Timer

Part = TypeVar("Part")


def compile_timed(
    projections: Sequence[Projection],
    mlps: Sequence[GatedMlp],
    fusions: Sequence[AddNormFusion],
    device: torch.device,
    parallel: TensorParallel,
    also_launch: Callable[[], object],
) -> None:
    """Compile all kernels that `choose_kernels` times. Called on all ranks. also_launch: launched once, so that its
    kernels are compiled beside them; may multiply by the projections."""
    use_choices(projections, dict.fromkeys(_alike(projections, lambda each: each), KernelRows()), device)

    def launch() -> None:
        for projection, *_ in _alike(projections, lambda each: each).values():
            launch_skinny(_method(projection))
        for mlp, *_ in _alike(mlps, lambda each: each.gate_up).values():
            launch_gated(mlp)
        for fusion, *_ in _alike(fusions, lambda each: each.product).values():
            launch_add_norm(fusion)
        also_launch()

    compile_for_ranks(launch, parallel)


def choose_kernels(
    projections: Sequence[Projection],
    mlps: Sequence[GatedMlp],
    fusions: Sequence[AddNormFusion],
    device: torch.device,
    timer: Timer,
) -> Mapping[str, KernelRows]:
    """Time the kernels, have all projections use the faster ones, and return the choices. Call it after
    `compile_timed`.

    mlps, fusions: of the projections, where several operations can be one kernel. Later timings use the earlier
    choices.
    """
    by_shape = _alike(projections, lambda each: each)
    choices = dict.fromkeys(by_shape, KernelRows())
    for shape, alike in by_shape.items():
        choices[shape] = KernelRows(skinny=most_skinny_rows([_method(each) for each in alike], timer))
    use_choices(projections, choices, device)
    for shape, gated in _alike(mlps, lambda each: each.gate_up).items():
        choices[shape] = replace(choices[shape], gated=gated_rows(gated, choices[shape].skinny, timer))
    use_choices(projections, choices, device)
    for shape, fused in _alike(fusions, lambda each: each.product).items():
        choices[shape] = replace(choices[shape], add_norm=add_norm_rows(fused, timer))
    use_choices(projections, choices, device)
    return choices


def _method(projection: Projection) -> KernelMethod:
    method = projection.own_method
    assert isinstance(method, KernelMethod)
    return method


def _alike(parts: Iterable[Part], projection_of: Callable[[Part], Projection]) -> dict[str, list[Part]]:
    by_shape = defaultdict[str, list[Part]](list)
    for part in parts:
        by_shape[projection_of(part).shape_name].append(part)
    return by_shape
