"""tests/kernels/test_sample_tokens.py draws through the filters; here, the border itself, against plain sorting."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.filter_border import filter_border_reference, filter_border_triton
from kernels.group_max import group_max_triton
from tests.kernels.lanes import GPU, INTERPRET

# Infinities are ordinary here; numpy, in the interpreter, would warn of them.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def sorted_border(x: list[float], top_k: int, top_p: float, min_p: float) -> float:
    """Token after token, from the most probable one down. Of one row."""
    ranked = sorted(x, reverse=True)
    border = math.log(min_p) if min_p else -math.inf
    if 0 < top_k < len(x):
        border = max(border, ranked[top_k - 1])
    left = [value for value in ranked if value >= border]
    if top_p < 1:
        mass, above = math.fsum(math.exp(value) for value in left), 0.0
        for index, value in enumerate(left):
            if index and value < left[index - 1] and above >= top_p * mass:
                break
            border = value
            above += math.exp(value)
    return border


def kept(x: torch.Tensor, border: torch.Tensor) -> torch.Tensor:
    return x >= border[:, None]


def rows_and_filters(num_rows: int, size: int, seed: int):
    """Parameters on a grid; masses at a border differ by far more than rounding."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, size, generator=generator) * 2
    logits[1] = (logits[1] * 2).round() / 2  # ties
    logits[2, ::2] = -math.inf
    logits[3] = 0
    top_k = torch.tensor([(0, 1, 3, 40, 300, 10**6)[i % 6] for i in range(num_rows)], dtype=torch.int32)
    top_p = torch.tensor([(1.0, 0.31, 0.77)[i % 3] for i in range(num_rows)])
    min_p = torch.tensor([(0.0, 0.0, 0.013, 0.31)[i % 4] for i in range(num_rows)])
    return logits, top_k, top_p, min_p


@pytest.mark.parametrize("size", [1, 17, 257, 5000])
def test_what_stays_is_what_sorting_leaves(size: int):
    logits, top_k, top_p, min_p = rows_and_filters(24, size, size)
    x = logits - logits.max(-1, keepdim=True).values
    border = filter_border_reference(x, top_k, top_p, min_p)
    parameters = zip(x.tolist(), top_k.tolist(), top_p.tolist(), min_p.tolist(), strict=True)
    want = torch.tensor([sorted_border(*row) for row in parameters])
    assert torch.equal(kept(x, border), kept(x, want))


def test_without_filters_everything_stays():
    x = torch.tensor([[0.0, -50.0, -math.inf]])
    border = filter_border_reference(x, torch.tensor([0]), torch.tensor([1.0]))
    assert border.tolist() == [-math.inf]


@pytest.mark.parametrize("lane", [INTERPRET, GPU])
@pytest.mark.parametrize("has_min_p", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_kernels_border_keeps_the_same_tokens(dtype: torch.dtype, has_min_p: bool, lane):
    logits, top_k, top_p, min_p = rows_and_filters(6, 301, 5)
    logits = logits.to(dtype)
    temperature = torch.tensor([1.0, 0.5, 1.0, 2.0, 0.0, 1.0])
    parameters = [temperature, top_k, top_p, min_p if has_min_p else None]
    on_device = [None if t is None else lane.put(t) for t in parameters]
    placed = lane.put(logits)
    largest, border = filter_border_triton(placed, group_max_triton(placed), *on_device)
    drawn = temperature > 0
    assert torch.equal(largest.cpu()[drawn], logits.float().max(-1).values[drawn])
    x = (logits.float() - logits.float().max(-1, keepdim=True).values)[drawn] / temperature[drawn, None]
    rest = [t[drawn] for t in (top_k, top_p)] + ([min_p[drawn]] if has_min_p else [])
    assert torch.equal(kept(x, border.cpu()[drawn]), kept(x, filter_border_reference(x, *rest)))


@pytest.mark.parametrize("lane", [INTERPRET, GPU])
def test_rows_that_are_not_drawn_from_are_passed_over(lane):
    logits = lane.put(torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [-math.inf] * 2]))
    one, none = lane.put(torch.ones(3)), lane.put(torch.zeros(3, dtype=torch.int32))
    largest, _ = filter_border_triton(logits, group_max_triton(logits), one, none, lane.put(torch.full((3,), 0.5)))
    assert not largest.isfinite().any()
