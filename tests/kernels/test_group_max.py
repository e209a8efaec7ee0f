from __future__ import annotations

import pytest
import torch

from kernels.group_max import GROUP, group_max, group_max_triton
from tests.kernels.lanes import LANES
from tests.kernels.tolerances import DTYPES

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (17, 123), (3, 128), (3, 129), (2, 5000)])
def test_largest_of_each_group(rows, size, dtype, lane):
    packed = torch.full((rows, size + 9), NAN, dtype=dtype)
    packed[:, :size] = torch.randn(rows, size).to(dtype)
    got = lane(group_max, group_max_triton)(lane.put(packed)[:, :size])
    want = [[max(row[i : i + GROUP]) for i in range(0, size, GROUP)] for row in packed[:, :size].tolist()]
    assert got.dtype == torch.float32
    assert got.tolist() == want


@pytest.mark.parametrize("lane", LANES)
def test_odd_logits(lane):
    logits = torch.zeros(4, 130)
    logits[0, 3] = NAN
    logits[1, 3] = INF
    logits[2, :128] = -INF
    logits[3, 129] = NAN
    got = lane(group_max, group_max_triton)(lane.put(logits))
    assert got.tolist() == [[INF, 0], [INF, 0], [-INF, 0], [0, INF]]
