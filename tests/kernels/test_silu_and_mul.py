from __future__ import annotations

import pytest
import torch

from kernels.silu_and_mul import silu_and_mul
from tests.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (17, 123), (123, 96)])
def test_follows_the_formula(rows, size, dtype):
    x = torch.randn(rows, 2 * size).to(dtype)
    gate, up = x.double().chunk(2, -1)
    assert_close(silu_and_mul(x), gate / (1 + torch.exp(-gate)) * up)


def test_gate_comes_first():
    x = torch.tensor([[0.0, 0.0, 7.0, 7.0]])
    assert torch.equal(silu_and_mul(x), torch.zeros(1, 2))


def test_gradients_match_finite_differences():
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(silu_and_mul, (x,))
