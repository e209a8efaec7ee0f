from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import add_rms_norm, rms_norm
from tests.kernels.tolerances import DTYPES, assert_close


def naive(x, weight, eps):
    x, weight = x.double(), weight.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (1, 576), (17, 123), (123, 64)])
def test_follows_the_formula(rows, size, dtype):
    x, weight = torch.randn(rows, size).to(dtype), torch.randn(size).to(dtype)
    assert_close(rms_norm(x, weight, 1e-5), naive(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_takes_heads_of_a_packed_projection(dtype):
    packed = torch.randn(17, 6, 64).to(dtype)
    weight = torch.randn(64).to(dtype)
    assert_close(rms_norm(packed[:, 2:5], weight, 1e-6), naive(packed[:, 2:5], weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 17, 123])
def test_adds_the_residual_first(rows, dtype):
    x, residual, weight = torch.randn(rows, 96).to(dtype), torch.randn(rows, 96).to(dtype), torch.ones(96, dtype=dtype)
    rounded_sum = x + residual
    out, total = add_rms_norm(x, residual.clone(), weight, 1e-5)
    assert torch.equal(total, rounded_sum)
    assert_close(out, naive(rounded_sum, weight, 1e-5))


def test_eps_holds_up_a_row_of_zeros():
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-5), torch.zeros(2, 8))


def test_gradients_match_finite_differences():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    residual = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *a: add_rms_norm(*a, 1e-5), (x, residual, weight))
