from __future__ import annotations

import pytest
import torch

from kernels.fp8_rows import (
    fp8_add_rms_norm,
    fp8_add_rms_norm_triton,
    fp8_rows,
    fp8_rows_triton,
    fp8_silu_and_mul,
    fp8_silu_and_mul_triton,
)
from kernels.rms_norm import add_rms_norm, add_rms_norm_triton
from kernels.silu_and_mul import silu_and_mul, silu_and_mul_triton
from tests.kernels.lanes import LANES


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(("rows", "size"), [(0, 16), (1, 1), (5, 123), (17, 1024)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_has_the_scale_of_its_largest(rows, size, dtype, lane):
    x = (torch.randn(rows, size + 3) * 3).to(dtype)
    x[:, size:] = float("nan")
    if rows:
        x[0, :size] = 0
    values, scales = lane(fp8_rows, fp8_rows_triton)(lane.put(x)[:, :size])
    assert values.shape == (rows, size) and scales.shape == (rows, 1) and scales.dtype == torch.float32
    want = x[:, :size].float()
    torch.testing.assert_close(scales.cpu(), want.abs().amax(1, keepdim=True).clamp(min=1e-12) / 448)
    back = values.cpu().float() * scales.cpu()
    is_near = (back - want).abs() <= want.abs() * (1 / 16 + 1e-5) + scales.cpu() * 2**-9
    # The interpreter loses the carry where a mantissa is rounded up to the next power of two: one element of eighty.
    assert is_near.all() or (lane.name == "interpret" and is_near.float().mean() > 0.95)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(("rows", "size"), [(0, 16), (1, 16), (5, 123), (17, 1024), (3, 4096)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_computed_and_rounded_at_once_is_as_one_after_the_other(rows, size, dtype, lane):
    wide, x, residual, weight = (
        lane.put((torch.randn(*shape) * 3).to(dtype))
        for shape in ((rows, 2 * size), (rows, size), (rows, size), (size,))
    )
    silu = lane(silu_and_mul, silu_and_mul_triton)
    norm = lane(add_rms_norm, add_rms_norm_triton)
    rounded = lane(fp8_rows, fp8_rows_triton)
    assert_near(lane(fp8_silu_and_mul, fp8_silu_and_mul_triton)(wide), rounded(silu(wide)), lane)
    normed, total = norm(x, residual.clone(), weight, 1e-5)
    got, got_total = lane(fp8_add_rms_norm, fp8_add_rms_norm_triton)(x, residual.clone(), weight, 1e-5)
    assert_near(got, rounded(normed), lane)
    assert torch.equal(got_total, total)


def assert_near(got, want, lane):
    """Where a sum's last bit tips what is rounded between, a row's scale differs by a bit of x's type, and an element
    by one of fp8. On a CPU the usual way has loops of its own, which round as the kernels do, and the reference not."""
    assert got.values.dtype == want.values.dtype and got.values.shape == want.values.shape
    torch.testing.assert_close(got.scales, want.scales, rtol=1e-2, atol=0)
    values, wanted = (rows.values.float() * rows.scales for rows in (got, want))
    assert ((values - wanted).abs() <= 0.14 * wanted.abs() + 2 * want.scales).all()
    is_same = (values - wanted).abs() <= 1e-2 * wanted.abs()
    assert not is_same.numel() or is_same.float().mean() > (0.9 if lane.name == "reference" else 0.99)
