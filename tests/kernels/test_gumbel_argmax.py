"""tests/kernels/test_sample_tokens.py tests what is drawn how often; here, the noise and who of it wins."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.group_max import group_max_triton
from kernels.gumbel_argmax import dense_gumbel, gumbel_argmax_reference, gumbel_argmax_triton
from tests.kernels.lanes import GPU, INTERPRET

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SEEDS, POSITIONS = torch.arange(8) * 10**15 - 7, torch.arange(8) * 3


def test_noise_has_the_gumbel_distributions_mean_and_variance():
    noise = dense_gumbel(torch.zeros(8, 50_000), SEEDS, POSITIONS)
    assert abs(float(noise.mean()) - 0.5772) < 0.01  # Euler's constant; five standard errors
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.03


def test_the_winner_is_the_argmax_of_the_scores():
    x = torch.randn(8, 700)
    x -= x.max(-1, keepdim=True).values
    want = (x + dense_gumbel(x, SEEDS, POSITIONS)).argmax(-1)
    assert torch.equal(gumbel_argmax_reference(x, SEEDS, POSITIONS), want)


def test_noise_made_for_few_tokens_equals_noise_made_for_all():
    """With tokens far below the best beside them, the same winners come of the sparse path."""
    x = torch.randn(8, 1024)
    widened = torch.full((8, 8192), -100.0)
    widened[:, :1024] = x
    assert torch.equal(gumbel_argmax_reference(x, SEEDS, POSITIONS), gumbel_argmax_reference(widened, SEEDS, POSITIONS))


@pytest.mark.parametrize("lane", [INTERPRET, GPU])
def test_the_kernels_best_chunk_holds_the_references_winner(lane):
    logits = torch.randn(8, 1500) * 3
    temperature = torch.tensor([1.0, 0.5, 2.0, 1.0] * 2)
    largest = logits.max(-1).values
    x = (logits - largest[:, None]) / temperature[:, None]
    border = torch.tensor([-math.inf, -1.0, -3.0, 0.0] * 2)
    want = gumbel_argmax_reference(x.masked_fill(x < border[:, None], -math.inf), SEEDS, POSITIONS)
    placed = [lane.put(t) for t in (largest, border, temperature, SEEDS, POSITIONS)]
    score, token = gumbel_argmax_triton(lane.put(logits), group_max_triton(lane.put(logits)), *placed)
    assert score.shape == (8, 2)
    best = score.cpu().argmax(-1)
    assert torch.equal(token.cpu().gather(1, best[:, None])[:, 0].long(), want)


@pytest.mark.parametrize("lane", [INTERPRET, GPU])
def test_a_chunk_in_which_nothing_stays_says_so(lane):
    logits = torch.full((1, 1100), -9.0)
    logits[0, 1050] = 0.0
    one, zero = torch.ones(1), torch.zeros(1, dtype=torch.int64)
    placed = [lane.put(t) for t in (torch.zeros(1), torch.tensor([-1.0]), one, zero, zero)]
    score, token = gumbel_argmax_triton(lane.put(logits), group_max_triton(lane.put(logits)), *placed)
    assert score.cpu()[0, 0] == -math.inf
    assert token.cpu()[0, 1] == 1050
