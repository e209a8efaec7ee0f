from __future__ import annotations

import pytest
import torch

from kernels.fp8_linear import fp8_linear, fp8_linear_triton
from kernels.fp8_rows import fp8_rows
from kernels.skinny_config import SkinnyConfig
from kernels.skinny_linear import new_arrivals
from tests.kernels.lanes import GPU, LANES
from tests.kernels.quantized_weights import random_weight
from tests.kernels.tolerances import assert_close


def case(lane, rows, features, size):
    """Rows with scales of their own, a weight, and their product in fp64."""
    dtype = torch.float32 if lane.name == "interpret" else torch.bfloat16
    weight, exact = random_weight("fp8", features, size, dtype, lane.device)
    values, scales = fp8_rows((torch.randn(rows, size) * torch.rand(rows, 1) * 9).to(lane.device))
    return values, scales, weight, values.double() * scales.double() @ exact.T


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("rows", [0, 1, 17, 64, 130])
@pytest.mark.parametrize(("features", "size"), [(16, 16), (176, 400)])
def test_follows_the_formula(features, size, rows, lane):
    x, scales, weight, want = case(lane, rows, features, size)
    bias = torch.randn(features).to(lane.device, weight.dtype)
    for arrivals in (None, new_arrivals(features, x.device)):
        got = lane(fp8_linear, fp8_linear_triton)(x, scales, weight, bias, arrivals)
        assert_close(got, want + bias.double())


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("num_splits", [2, 5])
def test_parts_of_any_number_are_merged(num_splits, lane):
    """More than there are tiles of K, too."""
    x, scales, weight, want = case(lane, 20, 112, 208)
    config = SkinnyConfig(64, 64, num_warps=4, num_stages=3, num_splits=num_splits)
    arrivals = new_arrivals(112, x.device)
    for _ in range(2):
        assert_close(fp8_linear_triton(x, scales, weight, None, arrivals, config), want)
        assert not arrivals.any()


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("rows", [1, 16, 64, 200, 256])
@pytest.mark.parametrize(("features", "size"), [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (1024, 3072)])
def test_whole_models_shapes(features, size, rows, lane):
    """Sums of the matrix units are short of fp32's: by less than x was rounded by."""
    x, scales, weight, want = case(lane, rows, features, size)
    for arrivals in (None, new_arrivals(features, x.device)):
        got = fp8_linear(x, scales, weight, None, arrivals).double()
        assert (got - want).norm() < 0.01 * want.norm()
