"""Which kernels multiply a model's weights on a GPU: all that is decided by timing, decided in one place.

The answers depend on the shapes and on the device, so each is timed with the model's own weights when it is loaded.
They are one value: who is given it multiplies by the same kernels, without any timing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from kernels.compile_ahead import compile_ahead
from kernels.skinny_linear import new_arrivals
from service.layers.few_rows import launch_skinny, most_skinny_rows
from service.layers.gated_mlp import GatedMlp
from service.layers.gated_rows import gated_rows, launch_gated
from service.layers.linear_method import KernelMethod, KernelRows
from service.layers.projection import Projection
from service.layers.stream_joint import StreamJoint, deferred_rows, launch_joint

KernelChoices = Mapping[torch.Size, KernelRows]
"""By the shape of a weight."""


def choose_kernels(
    projections: Sequence[Projection],
    mlps: Sequence[GatedMlp],
    joints: Sequence[StreamJoint],
    device: torch.device,
    also_launch: Callable[[], object],
) -> KernelChoices:
    """Time, and have all projections multiply by what is faster. Returns what was chosen.

    mlps, joints: of the projections, where more than a product can be had at once. also_launch: launched once, to have
    its kernels compiled beside those that are timed.
    """
    by_shape, mlps_by_shape, joints_by_shape = _alike(projections), defaultdict(list), defaultdict(list)
    for mlp in mlps:
        mlps_by_shape[mlp.gate_up.plain_weight.shape].append(mlp)
    for joint in joints:
        joints_by_shape[joint.product.plain_weight.shape].append(joint)
    # All share these counters: the products run one after the other.
    arrivals = new_arrivals(max(num_features for num_features, _ in by_shape), device)
    choices = dict.fromkeys(by_shape, KernelRows())
    use_kernels(projections, choices, arrivals)

    def launch() -> None:
        launch_skinny([alike[0].plain_weight for alike in by_shape.values()], arrivals)
        for gated in mlps_by_shape.values():
            launch_gated(gated[0])
        for joined in joints_by_shape.values():
            launch_joint(joined[0])
        also_launch()

    compile_ahead(launch)
    for shape, alike in by_shape.items():
        choices[shape] = KernelRows(most_skinny_rows([each.plain_weight for each in alike], arrivals))
    use_kernels(projections, choices, arrivals)
    for shape, gated in mlps_by_shape.items():
        choices[shape] = replace(choices[shape], gated=gated_rows(gated, choices[shape].skinny))
    use_kernels(projections, choices, arrivals)
    for shape, joined in joints_by_shape.items():
        choices[shape] = replace(choices[shape], deferred=deferred_rows(joined))
    use_kernels(projections, choices, arrivals)
    return choices


def use_kernels(projections: Iterable[Projection], choices: KernelChoices, arrivals: torch.Tensor) -> None:
    """Have the projections multiply by what was chosen for their shapes. arrivals: see `KernelMethod`."""
    for projection in projections:
        weight = projection.plain_weight
        projection.use(KernelMethod(weight, projection.bias, arrivals, choices[weight.shape]))


def _alike(projections: Iterable[Projection]) -> dict[torch.Size, list[Projection]]:
    by_shape = defaultdict[torch.Size, list[Projection]](list)
    for projection in projections:
        by_shape[projection.plain_weight.shape].append(projection)
    return by_shape
