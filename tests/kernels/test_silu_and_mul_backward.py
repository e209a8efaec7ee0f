from __future__ import annotations

import pytest
import torch

from kernels.silu_and_mul import silu_and_mul_reference
from kernels.silu_and_mul_backward import silu_and_mul_backward, silu_and_mul_backward_triton
from tests.kernels.lanes import LANES
from tests.kernels.tolerances import DTYPES, assert_close


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (17, 123), (2, 1300)])
def test_is_the_references_gradient(rows, size, dtype, lane):
    x, grad = lane.put(torch.randn(rows, 2 * size).to(dtype)), lane.put(torch.randn(rows, size).to(dtype))
    exact = x.double().requires_grad_()
    value = silu_and_mul_reference(exact)
    value.backward(grad.double())
    out = lane(silu_and_mul_backward, silu_and_mul_backward_triton)(grad, x)
    assert_close(out, value)
    assert_close(x, exact.grad)


def test_large_gates_neither_overflow_nor_vanish():
    x = torch.tensor([[200.0, -200.0, 3.0, 3.0]])
    out = silu_and_mul_backward(torch.ones(1, 2), x)
    assert_close(out, torch.tensor([[600.0, 0.0]]))
    assert_close(x, torch.tensor([[3.0, 0.0, 200.0, 0.0]]))
