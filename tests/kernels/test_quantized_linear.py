from __future__ import annotations

import pytest
import torch

from kernels import quantized_linear as quantized
from kernels.quantized_linear import multiplies_fp8, quantized_linear
from kernels.quantized_weight import QuantizedWeight
from tests.kernels.lanes import GPU, LANES
from tests.kernels.quantized_weights import KINDS, random_weight
from tests.kernels.tolerances import assert_close

FP8_ERROR = 0.05
"""Of a product, by its norm: x is rounded to fp8, too."""


@pytest.mark.each_once
@pytest.mark.parametrize("lane", [LANES[0], GPU])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 3, 70])
def test_in_fp32_it_follows_the_formula(kind, rows, lane):
    weight, exact = random_weight(kind, 45, 192, torch.float32, lane.device)
    x, bias = (torch.randn(*shape, device=lane.device) for shape in ((rows, 192), (45,)))
    assert_close(quantized_linear(x, weight, bias), x.double() @ exact.T + bias.double())


@pytest.mark.parametrize(
    ("features", "size", "gains"), [(960, 576, False), (576, 1536, False), (3072, 576, False), (1024, 3072, True)]
)
def test_x_is_rounded_to_fp8_only_where_that_is_faster(features, size, gains, monkeypatch):
    """SmolLM2-135M's qkv, down and gate_up, and Qwen3-0.6B's down, as on a GPU."""
    monkeypatch.setattr(QuantizedWeight, "is_cuda", True)
    monkeypatch.setattr(quantized, "_has_fp8_units", lambda _: True)
    weight, _ = random_weight("fp8", features, size, torch.bfloat16)
    assert multiplies_fp8(weight) is gains


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("features", "size"), [(6144, 4096), (4096, 14336)])
@pytest.mark.parametrize("rows", [65, 2048])
def test_whole_models_shapes(rows, features, size, kind, lane):
    weight, exact = random_weight(kind, features, size, torch.bfloat16, lane.device, group=128)
    x, bias = (torch.randn(*shape, device=lane.device).bfloat16() for shape in ((rows, size), (features,)))
    want = x.double() @ exact.T + bias.double()
    got = quantized_linear(x, weight, bias).double()
    assert multiplies_fp8(weight) is (kind == "fp8")
    assert (got - want).norm() < (FP8_ERROR if kind == "fp8" else 0.01) * want.norm()
