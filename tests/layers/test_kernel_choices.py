from __future__ import annotations

import pytest
import torch

from kernels.skinny_linear import new_arrivals
from service.layers.embedding import OutputHead
from service.layers.gated_mlp import GatedMlp
from service.layers.kernel_choices import choose_kernels, use_kernels
from service.layers.linear import Linear
from service.layers.linear_method import KernelRows
from service.layers.projection import Projection
from service.layers.rms_norm import ResidualRMSNorm
from service.layers.stream_joint import StreamJoint


def some_layers(device="cpu", dtype=torch.float32):
    """Two blocks' products, with shapes that appear in both, and a head."""
    mlps = [GatedMlp(64, 128, bias=False) for _ in range(2)]
    outputs = [Linear(96, 64) for _ in range(2)]
    norms = [ResidualRMSNorm(64, 1e-5) for _ in range(2)]
    head = OutputHead(300, 64, None)
    torch.manual_seed(0)
    for module in (*mlps, *outputs, *norms, head):
        for parameter in module.parameters():
            parameter.data = torch.randn(parameter.shape, device=device).to(dtype) / 8
    joints = [StreamJoint(*parts) for parts in zip(outputs, norms, [mlp.gate for mlp in mlps], strict=True)]
    projections = [each for mlp in mlps for each in mlp.modules() if isinstance(each, Projection)]
    return [*projections, *outputs, head], mlps, joints


def test_weights_of_one_shape_multiply_alike():
    projections, _, _ = some_layers()
    shapes = {each.plain_weight.shape for each in projections}
    choices = {shape: KernelRows(skinny=number) for number, shape in enumerate(sorted(shapes))}
    use_kernels(projections, choices, new_arrivals(300, torch.device("cpu")))
    assert len(shapes) == 4
    for projection in projections:
        assert projection.method.rows == choices[projection.plain_weight.shape]
        assert projection.method.weight is projection.plain_weight


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_chosen_once_computes_the_same_elsewhere_without_timing(dtype):
    device = torch.device("cuda")
    projections, mlps, joints = some_layers(device, dtype)
    launched = []
    choices = choose_kernels(projections, mlps, joints, device, lambda: launched.append(1))
    assert launched == [1]
    assert {each.plain_weight.shape for each in projections} == set(choices)
    others, other_mlps, other_joints = some_layers(device, dtype)
    use_kernels(others, choices, new_arrivals(300, device))
    assert [each.method.rows for each in others] == [each.method.rows for each in projections]
    for rows in (1, 8, 33, 64, 100, 128):
        x, residual = torch.randn(rows, 96, device=device).to(dtype), torch.randn(rows, 64, device=device).to(dtype)
        for one, other in zip(joints, other_joints, strict=True):
            assert torch.equal(one.plain(x, residual.clone()), other.plain(x, residual.clone()))
        for one, other in zip(mlps, other_mlps, strict=True):
            assert torch.equal(one(residual).value(), other(residual).value())
