from __future__ import annotations

import pytest
import torch

from kernels.greedy_tokens import greedy_tokens_reference

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(("rows", "size"), [(0, 5), (1, 1), (17, 123), (40, 20_011)])
def test_equals_the_reference(loops, rows, size):
    """On one thread and, from 400,000 numbers, on several; bf16 has many ties, of which the lowest id counts."""
    logits = torch.randn(rows, size + 3).bfloat16()[:, :size]
    assert torch.equal(loops.greedy_tokens(logits), greedy_tokens_reference(logits))
    negative = -1 - logits.abs()
    assert torch.equal(loops.greedy_tokens(negative), greedy_tokens_reference(negative))


@pytest.mark.parametrize(
    "row",
    [
        [-3.0, -2.0, -INF],
        [-INF, -INF, -INF],
        [1.0, INF, 2.0],
        [1.0, NAN, 2.0],
        [1.0, -NAN, 2.0],
        [-0.0, 0.0, -1.0],
        [-1.0, 0.0, -0.0],
        [3.38e38, -3.38e38, 0.0],
        [-3.38e38, -INF, -3.38e38],
    ],
    ids=str,
)
def test_ends_of_the_numbers(loops, row):
    logits = torch.tensor([row, [0.0, 1.0, 0.0]]).bfloat16()
    assert torch.equal(loops.greedy_tokens(logits), greedy_tokens_reference(logits))
