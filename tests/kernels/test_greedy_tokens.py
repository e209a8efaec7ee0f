from __future__ import annotations

import pytest
import torch

from kernels.greedy_tokens import greedy_tokens, greedy_tokens_triton
from tests.kernels.lanes import LANES
from tests.kernels.tolerances import DTYPES

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (17, 123), (5, 129), (3, 49152)])
def test_finds_the_largest(rows, size, dtype, lane):
    logits = torch.randn(rows, size).to(dtype)
    want = [max(range(size), key=lambda t: (row[t], -t)) for row in logits.tolist()]
    assert lane(greedy_tokens, greedy_tokens_triton)(lane.put(logits)).tolist() == want


@pytest.mark.parametrize("lane", LANES)
def test_rows_may_be_strided_and_end_where_they_end(lane):
    packed = torch.full((5, 300), float("inf"))
    packed[:, :200] = torch.randn(5, 200)
    logits = lane.put(packed)[:, :200]
    assert lane(greedy_tokens, greedy_tokens_triton)(logits).tolist() == packed[:, :200].argmax(-1).tolist()


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("row", "want"),
    [
        ([1, 3, 3, 2], 1),  # the lowest id among equals
        ([-INF, -5, -INF, -INF], 1),  # forbidden tokens
        ([1, NAN, 9, 2], -1),
        ([1, INF, 9, 2], -1),
        ([-INF] * 4, -1),
    ],
)
def test_odd_rows(row, want, lane):
    logits = lane.put(torch.tensor([row, [0.0, 0, 1, 0]]))
    assert lane(greedy_tokens, greedy_tokens_triton)(logits).tolist() == [want, 2]


@pytest.mark.parametrize("lane", LANES)
def test_the_lowest_id_among_equals_of_different_groups(lane):
    logits = torch.zeros(2, 1000)
    logits[0, [300, 400, 900]] = 1
    logits[1, [999]] = 1
    assert lane(greedy_tokens, greedy_tokens_triton)(lane.put(logits)).tolist() == [300, 999]
