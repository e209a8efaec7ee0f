from __future__ import annotations

import pytest
import torch

from kernels.silu_and_mul import silu_and_mul_reference
from tests.kernels.tolerances import assert_close


@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (17, 123), (3, 1300), (30, 1536)])
def test_equals_the_reference(loops, rows, size):
    """On one thread and, from 32,000 numbers, on several."""
    x = torch.randn(rows, 2 * size).bfloat16()
    assert_close(loops.silu_and_mul(x), silu_and_mul_reference(x.double()))


def test_far_ends_and_nan(loops):
    gate = torch.tensor([[3e38, -3e38, 100.0, -100.0, float("nan"), 0.0]])
    got = loops.silu_and_mul(torch.cat((gate, torch.ones(1, 6)), 1).bfloat16())[0]
    assert got[4].isnan()
    torch.testing.assert_close(got[[0, 2]], gate[0, [0, 2]].bfloat16())
    assert got[[3, 5]].abs().max() < 1e-30
    assert got[1].abs() < 3  # -3e38 / 1.7e38: the exponential ends there
