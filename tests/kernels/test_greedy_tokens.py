from __future__ import annotations

import pytest
import torch

from kernels.greedy_tokens import greedy_tokens
from tests.kernels.tolerances import DTYPES

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (17, 123), (3, 49152)])
def test_finds_the_largest(rows, size, dtype):
    logits = torch.randn(rows, size).to(dtype)
    want = [max(range(size), key=lambda t: (row[t], -t)) for row in logits.tolist()]
    assert greedy_tokens(logits).tolist() == want


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
def test_odd_rows(row, want):
    assert greedy_tokens(torch.tensor([row, [0.0, 0, 1, 0]])).tolist() == [want, 2]
