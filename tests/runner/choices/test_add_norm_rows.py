from __future__ import annotations

import pytest
import torch

from kernels.skinny_config import FEW_ROWS, MAX_ROWS
from kernels.skinny_linear import new_arrivals
from service.layers.add_norm_fusion import AddNormFusion
from service.layers.gated_mlp import GatedMlp
from service.layers.linear import Linear
from service.layers.linear_method import KernelMethod, RowRange
from service.layers.rms_norm import ResidualRMSNorm
from service.runner.choices import add_norm_rows as of_add_norm
from service.runner.choices.add_norm_rows import add_norm_rows, fused, unfused
from service.runner.choices.timer import seconds_on_gpu
from tests.kernels.quantized_weights import random_weight


def fusions(device, dtype=torch.float32, count=2):
    """With an MLP behind, and with a plain product."""
    made, arrivals = [], new_arrivals(640, torch.device(device))
    for _ in range(count):
        product, norm = Linear(128, 256, bias=True), ResidualRMSNorm(256, 1e-5)
        for behind in (GatedMlp(256, 320, bias=True), Linear(256, 384)):
            for parameter in (p for module in (product, norm, behind) for p in module.parameters()):
                parameter.data = torch.randn(parameter.shape, device=device).to(dtype) * 0.1
            for linear in (module for module in (product, *behind.modules()) if isinstance(module, Linear)):
                linear.use(KernelMethod(linear.weight, linear.bias, arrivals))
            made.append(AddNormFusion(product, norm, behind.gate if isinstance(behind, GatedMlp) else behind))
    return made[::2], made[1::2]


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("rows", [1, 16, 64])
def test_both_ways_are_the_same_function(rows, dtype, tolerance, device):
    for [fusion] in fusions(device, dtype, count=1):
        x = torch.randn(rows, 128, device=device).to(dtype)
        residual = torch.randn(rows, 256, device=device).to(dtype)
        want = unfused(fusion, x, residual.clone())
        torch.testing.assert_close(fused(fusion, x, residual), want, atol=tolerance, rtol=tolerance)


def test_on_a_cpu_never():
    for alike in fusions("cpu"):
        assert add_norm_rows(alike, lambda launches: pytest.fail("timed")) == RowRange()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_up_to_some_number_of_rows(dtype):
    for alike in fusions("cuda", dtype):
        rows = add_norm_rows(alike, seconds_on_gpu)
        assert (1 in rows) == (FEW_ROWS in rows)
        assert (FEW_ROWS + 1 in rows) == (MAX_ROWS in rows)
        assert MAX_ROWS + 1 not in rows
        assert not any(fusion.product.method.arrivals.any() for fusion in alike)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("few", "many", "rows"), [(3, 3, ()), (2, 3, (1, 16)), (3, 2, (17, 64)), (2, 2, (1, 16, 17, 64))]
)
def test_the_faster_one_is_taken(few, many, rows):
    """Unfused, each launch takes 2.5."""

    def timer(launches):
        _, x, _ = launches[0].args
        return 2.5 if launches[0].func is unfused else few if len(x) <= FEW_ROWS else many

    alike, _ = fusions("cuda", torch.bfloat16)
    chosen = add_norm_rows(alike, timer)
    assert [n for n in (1, 16, 17, 64, 65) if n in chosen] == list(rows)


@pytest.mark.parametrize(
    ("fused_s", "rows"),
    [
        ((3, 3, 3), ()),
        ((2, 3, 3), (1, 8)),
        ((3, 2, 2), (9, 16, 17, 64)),
        ((1, 2.7, 2), (1, 8, 9, 16, 17, 64)),
        ((2, 3.5, 1), (17, 64)),
    ],
)
def test_rows_of_quantized_weights_that_go_through_registers_are_a_range_of_their_own(fused_s, rows, monkeypatch):
    """Unfused, each launch takes 2.5. What is between two ranges that gain goes with them if they gain more."""

    def timer(launches):
        _, x, _ = launches[0].args
        return 2.5 if launches[0].func is unfused else fused_s[0 if len(x) <= 8 else 1 if len(x) <= FEW_ROWS else 2]

    monkeypatch.setattr(of_add_norm, "timed_rows", lambda weight: (8, FEW_ROWS, MAX_ROWS, 256))
    alike, _ = fusions("cpu", torch.bfloat16)
    for fusion in alike:
        monkeypatch.setattr(type(fusion.product), "held_weight", random_weight("fp8", 256, 128, torch.bfloat16)[0])
    chosen = add_norm_rows(alike, timer)
    assert [n for n in (1, 8, 9, 16, 17, 64, 65) if n in chosen] == list(rows)
