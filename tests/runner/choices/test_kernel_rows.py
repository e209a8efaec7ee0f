from __future__ import annotations

import pytest
import torch

from service.layers.add_norm_fusion import AddNormFusion
from service.layers.embedding import OutputHead
from service.layers.gated_mlp import GatedMlp
from service.layers.linear import Linear
from service.layers.projection import Projection, use_choices
from service.layers.rms_norm import ResidualRMSNorm
from service.layers.tensor_parallel import ALONE
from service.runner.choices.add_norm_rows import unfused
from service.runner.choices.kernel_rows import choose_kernels, compile_timed
from service.runner.choices.timer import seconds_on_gpu


def some_layers(device, dtype):
    """Two blocks' products, with shapes that appear in both, and a head."""
    mlps = [GatedMlp(64, 128, bias=False) for _ in range(2)]
    outputs = [Linear(96, 64) for _ in range(2)]
    norms = [ResidualRMSNorm(64, 1e-5) for _ in range(2)]
    head = OutputHead(300, 64, None)
    torch.manual_seed(0)
    for module in (*mlps, *outputs, *norms, head):
        for parameter in module.parameters():
            parameter.data = torch.randn(parameter.shape, device=device).to(dtype) / 8
    fusions = [AddNormFusion(*parts) for parts in zip(outputs, norms, [mlp.gate for mlp in mlps], strict=True)]
    projections = [each for mlp in mlps for each in mlp.modules() if isinstance(each, Projection)]
    return [*projections, *outputs, head], mlps, fusions


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_chosen_once_computes_the_same_elsewhere_without_timing(dtype):
    device = torch.device("cuda")
    projections, mlps, fusions = some_layers(device, dtype)
    launched = []
    compile_timed(projections, mlps, fusions, device, ALONE, lambda: launched.append(1))
    choices = choose_kernels(projections, mlps, fusions, device, seconds_on_gpu)
    assert launched == [1]
    assert {each.shape_name for each in projections} == set(choices)
    others, other_mlps, other_fusions = some_layers(device, dtype)
    use_choices(others, choices, device)
    assert [each.method.choice for each in others] == [each.method.choice for each in projections]
    assert [each.method.choice for each in others] == [choices[each.shape_name] for each in others]
    for rows in (1, 8, 33, 64, 100, 128):
        x, residual = torch.randn(rows, 96, device=device).to(dtype), torch.randn(rows, 64, device=device).to(dtype)
        for one, other in zip(fusions, other_fusions, strict=True):
            assert torch.equal(unfused(one, x, residual.clone()), unfused(other, x, residual.clone()))
        for one, other in zip(mlps, other_mlps, strict=True):
            assert torch.equal(one(residual).value(), other(residual).value())
