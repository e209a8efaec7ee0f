from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import rms_norm_reference
from tests.kernels.tolerances import assert_close


@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (17, 123), (123, 96), (100, 576)])
def test_equals_the_reference(loops, rows, size):
    """On one thread and, from 40,000 numbers, on several."""
    x, residual = torch.randn(rows, size).bfloat16(), torch.randn(rows, size).bfloat16()
    weight = (torch.rand(size) + 0.5).bfloat16()
    before, total = x.clone(), x + residual
    got, got_total = loops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(got_total, total) and torch.equal(x, before)
    assert_close(got, rms_norm_reference(total.double(), weight.double(), 1e-5))


@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (17, 123), (100, 576)])
def test_without_a_residual_equals_the_reference(loops, rows, size):
    x, weight = torch.randn(rows, size).bfloat16(), (torch.rand(size) + 0.5).bfloat16()
    assert_close(loops.rms_norm(x, weight, 1e-5), rms_norm_reference(x.double(), weight.double(), 1e-5))


def test_a_row_that_is_not_finite_stays_alone(loops):
    x, weight = torch.randn(3, 64).bfloat16(), torch.ones(64).bfloat16()
    x[1, 5] = float("nan")
    got, _ = loops.add_rms_norm(x, torch.zeros_like(x), weight, 1e-5)
    assert got[1].isnan().all()
    assert got[[0, 2]].isfinite().all()
