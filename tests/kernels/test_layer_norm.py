from __future__ import annotations

import pytest
import torch

from kernels.layer_norm import add_layer_norm, add_layer_norm_triton, layer_norm, layer_norm_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import DTYPES, assert_close


def naive(x, weight, bias, eps):
    x, weight, bias = x.double(), weight.double(), bias.double()
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight + bias


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (1, 576), (17, 123), (123, 64)])
def test_follows_the_formula(rows, size, dtype, lane):
    x = lane.put((torch.randn(rows, size) + 3).to(dtype))
    weight, bias = (lane.put(torch.randn(size).to(dtype)) for _ in range(2))
    assert_close(lane(layer_norm, layer_norm_triton)(x, weight, bias, 1e-5), naive(x, weight, bias, 1e-5))


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 17])
def test_adds_the_residual_first(rows, dtype, lane):
    # The sum is exact: the interpreter truncates to bf16 where a GPU rounds.
    x, residual = (lane.put(((torch.randn(rows, 99) * 8).round() / 8).to(dtype)) for _ in range(2))
    weight, bias = (lane.put(torch.randn(99).to(dtype)) for _ in range(2))
    want = x + residual
    out, total = lane(add_layer_norm, add_layer_norm_triton)(x, residual.clone(), weight, bias, 1e-5)
    assert torch.equal(total, want)
    assert_close(out, naive(want, weight, bias, 1e-5))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("size", [768, 4096, 32768])
def test_wide_rows(size, lane):
    x, weight, bias = (lane.put(torch.randn(*shape).bfloat16()) for shape in [(17, size), (size,), (size,)])
    assert_close(layer_norm(x, weight, bias, 1e-5), naive(x, weight, bias, 1e-5))


def test_gradients_match_finite_differences():
    x, residual = (torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weight, bias = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda *a: add_layer_norm(*a, 1e-5), (x, residual, weight, bias))
