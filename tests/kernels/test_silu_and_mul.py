from __future__ import annotations

import math

import pytest
import torch

from kernels.silu_and_mul import silu_and_mul, silu_and_mul_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (17, 123), (123, 96), (2, 1300)])
def test_follows_the_formula(rows, size, dtype, lane):
    x = lane.put(torch.randn(rows, 2 * size).to(dtype))
    gate, up = x.double().chunk(2, -1)
    assert_close(lane(silu_and_mul, silu_and_mul_triton)(x), gate / (1 + torch.exp(-gate)) * up)


@pytest.mark.parametrize("lane", [GPU])
def test_reaches_elements_beyond_int32(lane):
    x = torch.zeros(2**31 // 8192 + 3, 8192, dtype=torch.bfloat16, device=lane.device)
    x[-1] = 1
    got = silu_and_mul(x)
    assert_close(got[-1:], torch.full((1, 4096), 1 / (1 + math.exp(-1)), device=lane.device))
    assert not got[-2].any()


def test_large_gates_neither_overflow_nor_vanish():
    x = torch.tensor([[200.0, -200.0, 1.0, 1.0]])
    assert_close(silu_and_mul(x), torch.tensor([[200.0, 0.0]]))


def test_gate_comes_first():
    x = torch.tensor([[0.0, 0.0, 7.0, 7.0]])
    assert torch.equal(silu_and_mul(x), torch.zeros(1, 2))


def test_gradients_match_finite_differences():
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(silu_and_mul, (x,))
