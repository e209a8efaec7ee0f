from __future__ import annotations

import pytest
import torch

from kernels.rms_norm_backward import rms_norm_backward, rms_norm_backward_triton
from tests.kernels.lanes import LANES
from tests.kernels.tolerances import DTYPES, assert_close

EPS = 1e-5


def exact_norm(x, weight):
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (1, 576), (17, 123)])
def test_is_the_norms_gradient(shape, dtype, lane):
    x, grad, weight = (lane.put(torch.randn(each).to(dtype)) for each in (shape, shape, shape[-1:]))
    exact = x.double().requires_grad_()
    value = exact_norm(exact, weight.double())
    value.backward(grad.double())
    normed, x_grad = lane(rms_norm_backward, rms_norm_backward_triton)(grad, x, weight, EPS)
    assert_close(normed, value)
    assert_close(x_grad, exact.grad)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_is_added_to_what_came_beside_the_norm_and_rounded_once(dtype, lane):
    x, grad, beside = (lane.put(torch.randn(17, 123).to(dtype)) for _ in range(3))
    weight = lane.put(torch.randn(123).to(dtype))
    exact = x.double().requires_grad_()
    exact_norm(exact, weight.double()).backward(grad.double())
    expected = exact.grad + beside.double()
    _, x_grad = lane(rms_norm_backward, rms_norm_backward_triton)(grad, x, weight, EPS, beside)
    assert x_grad is beside
    # Triton's interpreter cuts a number of bf16 off where a device rounds it.
    one_rounding = torch.finfo(dtype).eps / (1 if lane.name == "interpret" else 2) + 1e-6
    assert ((x_grad.double() - expected).abs() <= one_rounding * expected.abs() + 1e-5).all()


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_takes_heads_of_a_packed_projection(dtype, lane):
    packed, grads = (torch.full((17, 6, 40), float("nan"), dtype=dtype) for _ in range(2))
    packed[:, 2:5, :32], grads[:, 1:4, :32] = torch.randn(17, 3, 32), torch.randn(17, 3, 32)
    x, grad = lane.put(packed)[:, 2:5, :32], lane.put(grads)[:, 1:4, :32]
    weight = lane.put(torch.randn(32).to(dtype))
    exact = x.double().requires_grad_()
    exact_norm(exact, weight.double()).backward(grad.double())
    assert_close(lane(rms_norm_backward, rms_norm_backward_triton)(grad, x, weight, EPS)[1], exact.grad)
