from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import add_rms_norm, add_rms_norm_triton, rms_norm, rms_norm_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import DTYPES, assert_close


def naive(x, weight, eps):
    x, weight = x.double(), weight.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (1, 576), (17, 123), (123, 64)])
def test_follows_the_formula(rows, size, dtype, lane):
    x, weight = lane.put(torch.randn(rows, size).to(dtype)), lane.put(torch.randn(size).to(dtype))
    assert_close(lane(rms_norm, rms_norm_triton)(x, weight, 1e-5), naive(x, weight, 1e-5))


@pytest.mark.parametrize("lane", LANES)
def test_a_weight_may_have_more_bits_than_the_rows(lane):
    x, weight = lane.put(torch.randn(17, 123).bfloat16()), lane.put(1 + 0.01 * torch.randn(123))
    assert_close(lane(rms_norm, rms_norm_triton)(x, weight, 1e-5), naive(x, weight, 1e-5))
    residual = lane.put(torch.randn(17, 123).bfloat16())
    normed, total = lane(add_rms_norm, add_rms_norm_triton)(x, residual.clone(), weight, 1e-5)
    assert_close(total, x.double() + residual.double())
    assert_close(normed, naive(total, weight, 1e-5))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("size", [4096, 5120, 8192, 32768])
def test_wide_rows(size, lane):
    x, weight = lane.put(torch.randn(17, size).bfloat16()), lane.put(torch.randn(size).bfloat16())
    assert_close(rms_norm(x, weight, 1e-5), naive(x, weight, 1e-5))


@pytest.mark.parametrize("lane", LANES)
def test_reads_no_element_beyond_its_row(lane):
    packed = torch.full((17, 40), float("nan"))
    packed[:, :30] = torch.randn(17, 30)
    x, weight = lane.put(packed)[:, :30], lane.put(torch.randn(30))
    assert_close(lane(rms_norm, rms_norm_triton)(x, weight, 1e-5), naive(x, weight, 1e-5))


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_takes_heads_of_a_packed_projection(dtype, lane):
    packed = lane.put(torch.randn(17, 6, 64).to(dtype))
    weight = lane.put(torch.randn(64).to(dtype))
    got = lane(rms_norm, rms_norm_triton)(packed[:, 2:5], weight, 1e-6)
    assert_close(got, naive(packed[:, 2:5], weight, 1e-6))


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 17, 123])
def test_adds_the_residual_first(rows, dtype, lane):
    x, residual, weight = (lane.put(torch.randn(*shape).to(dtype)) for shape in [(rows, 99), (rows, 99), (99,)])
    if lane.name == "interpret":  # which truncates to bf16 where a GPU rounds: make the sum exact
        x, residual = (x * 8).round() / 8, (residual * 8).round() / 8
    rounded_sum = x + residual
    out, total = lane(add_rms_norm, add_rms_norm_triton)(x, residual.clone(), weight, 1e-5)
    assert torch.equal(total, rounded_sum)
    assert_close(out, naive(rounded_sum, weight, 1e-5))


def test_eps_holds_up_a_row_of_zeros():
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-5), torch.zeros(2, 8))


def test_gradients_match_finite_differences():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    residual = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: add_rms_norm(*a, 1e-5), (x, residual, weight))
