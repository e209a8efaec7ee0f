from __future__ import annotations

import math

import pytest
import torch

from kernels.gelu_and_mul import gelu_and_mul, gelu_and_mul_triton
from tests.kernels.lanes import LANES
from tests.kernels.tolerances import DTYPES, assert_close


def naive(gate, approximate):
    if approximate == "tanh":
        return gate / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    return gate / 2 * (1 + torch.erf(gate / math.sqrt(2)))


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (17, 123), (2, 1300)])
def test_follows_the_formula(rows, size, approximate, dtype, lane):
    x = lane.put(torch.randn(rows, 2 * size).to(dtype))
    gate, up = x.double().chunk(2, -1)
    assert_close(lane(gelu_and_mul, gelu_and_mul_triton)(x, approximate), naive(gate, approximate) * up)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_large_gates_neither_overflow_nor_vanish(approximate, lane):
    x = lane.put(torch.tensor([[200.0, -200.0, 1.0, 1.0]]))
    got = lane(gelu_and_mul, gelu_and_mul_triton)(x, approximate)
    assert_close(got.cpu(), torch.tensor([[200.0, 0.0]]))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gradients_match_finite_differences(approximate):
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: gelu_and_mul(x, approximate), (x,))
