from __future__ import annotations

import pytest
import torch

from kernels.optional_triton import tl, triton
from kernels.pairwise_sum import column_strips, pairwise_column_sums, pairwise_sum, pairwise_sums, row_strips
from tests.kernels.lanes import LANES


def naive(x):
    """[N, M] -> [M], in fp32 as the kernels add."""
    while len(x) > 1:
        first, second = x.chunk(2)
        x = first + second
    return x[0]


@triton.jit
def _sums_kernel(
    x_ptr, by_columns_ptr, of_strips_ptr, by_rows_ptr, NUM: tl.constexpr, ROWS: tl.constexpr, STRIP: tl.constexpr
):
    item, row = tl.arange(0, NUM), tl.arange(0, ROWS)
    columns = tl.load(x_ptr + item[:, None] * ROWS + row[None, :])
    tl.store(by_columns_ptr + row, pairwise_sum(columns))
    rows = tl.load(x_ptr + item[None, :] * ROWS + row[:, None])
    strips = tl.arange(0, NUM // STRIP)
    tl.store(of_strips_ptr + strips[:, None] * ROWS + row[None, :], pairwise_column_sums(columns, STRIP))
    tl.store(by_rows_ptr + strips[:, None] * ROWS + row[None, :], tl.trans(pairwise_sums(rows, STRIP)))


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize(("num", "rows"), [(64, 16), (128, 64), (1, 16), (256, 4)])
def test_halves_are_added_whatever_the_layout(num, rows, num_warps, lane):
    values, strip = torch.randn(num, rows) * 100, min(num, 64)
    x, by_columns, of_strips, by_rows = (
        lane.put(each) for each in (values, torch.empty(rows), *torch.empty(2, num // strip, rows))
    )
    _sums_kernel[(1,)](x, by_columns, of_strips, by_rows, NUM=num, ROWS=rows, STRIP=strip, num_warps=num_warps)
    assert torch.equal(by_columns.cpu(), naive(values))
    expected = torch.stack([naive(part) for part in values.split(strip)])
    assert torch.equal(by_rows.cpu(), expected) and torch.equal(of_strips.cpu(), expected)


@triton.jit
def _strips_kernel(x_ptr, of_columns_ptr, of_rows_ptr, NUM: tl.constexpr, ROWS: tl.constexpr, STRIPS: tl.constexpr):
    item, row, strip = tl.arange(0, NUM), tl.arange(0, ROWS), tl.arange(0, STRIPS)
    ptrs = strip[:, None] * ROWS + row[None, :]
    tl.store(of_columns_ptr + ptrs, column_strips(tl.load(x_ptr + item[:, None] * ROWS + row[None, :])))
    if NUM > 32:
        rows = row_strips(tl.load(x_ptr + item[None, :] * ROWS + row[:, None]))
        tl.store(of_rows_ptr + ptrs, tl.trans(rows))


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize(("num", "rows"), [(32, 16), (64, 64), (256, 4)])
def test_a_strip_is_two_sums_of_32(num, rows, num_warps, lane):
    values, strips = torch.randn(num, rows) * 100, max(1, num // 64)
    x, of_columns, of_rows = (lane.put(each) for each in (values, *torch.empty(2, strips, rows)))
    _strips_kernel[(1,)](x, of_columns, of_rows, NUM=num, ROWS=rows, STRIPS=strips, num_warps=num_warps)
    expected = torch.stack([sum(naive(half) for half in part.split(32)) for part in values.split(64)])
    assert torch.equal(of_columns.cpu(), expected) and (num == 32 or torch.equal(of_rows.cpu(), expected))
