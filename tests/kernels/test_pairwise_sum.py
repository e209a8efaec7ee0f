from __future__ import annotations

import pytest
import torch

from kernels.optional_triton import tl, triton
from kernels.pairwise_sum import pairwise_sum, pairwise_sums
from tests.kernels.lanes import LANES


def naive(x):
    """[N, M] -> [M], in fp32 as the kernels add."""
    while len(x) > 1:
        first, second = x.chunk(2)
        x = first + second
    return x[0]


@triton.jit
def _sums_kernel(x_ptr, by_columns_ptr, by_rows_ptr, NUM: tl.constexpr, ROWS: tl.constexpr, STRIP: tl.constexpr):
    item, row = tl.arange(0, NUM), tl.arange(0, ROWS)
    columns = tl.load(x_ptr + item[:, None] * ROWS + row[None, :])
    tl.store(by_columns_ptr + row, pairwise_sum(columns))
    rows = tl.load(x_ptr + item[None, :] * ROWS + row[:, None])
    strips = tl.arange(0, NUM // STRIP)
    tl.store(by_rows_ptr + strips[:, None] * ROWS + row[None, :], tl.trans(pairwise_sums(rows, STRIP)))


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize(("num", "rows"), [(64, 16), (128, 64), (1, 16), (256, 4)])
def test_halves_are_added_whatever_the_layout(num, rows, num_warps, lane):
    values, strip = torch.randn(num, rows) * 100, min(num, 64)
    x, by_columns, by_rows = (lane.put(each) for each in (values, torch.empty(rows), torch.empty(num // strip, rows)))
    _sums_kernel[(1,)](x, by_columns, by_rows, NUM=num, ROWS=rows, STRIP=strip, num_warps=num_warps)
    assert torch.equal(by_columns.cpu(), naive(values))
    assert torch.equal(by_rows.cpu(), torch.stack([naive(part) for part in values.split(strip)]))
