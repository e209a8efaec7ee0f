from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels import cross_entropy as module
from kernels.cross_entropy import cross_entropy, cross_entropy_triton
from tests.kernels.lanes import LANES
from tests.kernels.tolerances import DTYPES, assert_close


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (5, 130), (3, 257)])
@pytest.mark.parametrize("with_gradient", [True, False])
def test_is_autograds(rows, size, dtype, with_gradient, lane, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 64)
    logits, targets = torch.randn(rows, size).mul_(4).to(dtype), torch.randint(size, (rows,))
    targets[::2] = logits.argmax(-1)[::2]
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact, targets, reduction="none")
    (3.0 * expected).sum().backward()
    given = lane.put(logits)
    losses, hits = lane(cross_entropy, cross_entropy_triton)(given, lane.put(targets), 3.0 if with_gradient else None)
    assert_close(losses.cpu(), expected.detach())
    assert hits.tolist() == (exact.argmax(-1) == targets).tolist()
    if with_gradient:
        assert_close(given.cpu(), exact.grad)
    else:
        assert torch.equal(given.cpu(), logits)


@pytest.mark.parametrize("lane", LANES)
def test_of_equally_great_logits_the_first_is_hit(lane, monkeypatch):
    """In 16 bits there often are some."""
    monkeypatch.setattr(module, "_BLOCK", 64)
    logits = torch.zeros(4, 200, dtype=torch.bfloat16)
    logits[:, [30, 50, 100, 190]] = 2.0
    targets = torch.tensor([30, 50, 100, 190])
    _, hits = lane(cross_entropy, cross_entropy_triton)(lane.put(logits), lane.put(targets), None)
    assert hits.tolist() == [True, False, False, False]


@pytest.mark.parametrize("lane", LANES)
def test_large_logits_neither_overflow_nor_vanish_and_nan_is_told(lane):
    logits = torch.tensor([[100.0, -100.0, 100.0], [float("nan"), 0.0, 0.0]])
    given = lane.put(logits)
    losses, _ = lane(cross_entropy, cross_entropy_triton)(given, lane.put(torch.tensor([0, 1])), 1.0)
    assert_close(losses[:1].cpu(), torch.tensor([2.0]).log())
    assert_close(given[0].cpu(), torch.tensor([-0.5, 0.0, 0.5]))
    assert torch.isnan(losses[1]) and torch.isnan(given[1]).any()
