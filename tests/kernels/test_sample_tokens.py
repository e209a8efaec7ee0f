from __future__ import annotations

import math

import pytest
import torch

from kernels.sample_tokens import sample_tokens

INF, NAN = float("inf"), float("nan")


def draw(logits, *, temperature=1.0, top_k=0, top_p=1.0, seeds=0, positions=0):
    """Parameters may be one value for all rows or a list."""
    rows = logits.shape[0]

    def column(value, dtype):
        return torch.as_tensor(value, dtype=dtype).expand(rows).contiguous()

    return sample_tokens(
        logits,
        column(temperature, torch.float32),
        column(top_k, torch.int32),
        column(top_p, torch.float32),
        column(seeds, torch.int64),
        column(positions, torch.int64),
    )


def histogram(logits, count, **parameters):
    """Draws from one row of logits at positions 0, 1, 2 …"""
    ids = draw(logits.expand(count, -1), seeds=1234, positions=torch.arange(count), **parameters)
    return torch.bincount(ids, minlength=logits.shape[-1])


def assert_distributed(counts, probabilities):
    """Pearson's chi-square below the value that chance exceeds once in a million, for fixed seeds."""
    expected = probabilities.double() * counts.sum()
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    statistic = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
    freedom = int(kept.sum()) - 1
    # Wilson and Hilferty's approximation of the quantile; 4.75 standard deviations is one in a million.
    spread = 2 / (9 * freedom)
    assert statistic < freedom * (1 - spread + 4.75 * math.sqrt(spread)) ** 3


LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 1.0, 0.5, -3.0, 2.5, 0.1, 0.2, -0.7]])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature):
    counts = histogram(LOGITS, 40_000, temperature=temperature)
    assert_distributed(counts, torch.softmax(LOGITS[0] / temperature, -1))


def test_draws_over_seeds_follow_the_softmax_too():
    ids = draw(LOGITS.expand(40_000, -1), seeds=torch.arange(40_000), positions=5)
    assert_distributed(torch.bincount(ids, minlength=11), torch.softmax(LOGITS[0], -1))


def test_a_large_flat_vocabulary_is_drawn_evenly():
    counts = histogram(torch.zeros(1, 5000), 4000).view(50, 100).sum(1)
    assert_distributed(counts, torch.full((50,), 1 / 50))


def test_top_k_keeps_the_k_largest_and_ties():
    kept = torch.softmax(LOGITS[0].masked_fill(LOGITS[0] < 1.0, -INF), -1)
    for k in (3, 4):  # tokens 1 and 4 tie for the third place
        assert_distributed(histogram(LOGITS, 20_000, top_k=k), kept)


def test_top_p_keeps_the_token_that_crosses():
    p = torch.softmax(LOGITS[0], -1)
    largest_two = float(p[7] + p[0])
    kept_two = torch.softmax(LOGITS[0].masked_fill(p < p[0], -INF), -1)
    kept_four = torch.softmax(LOGITS[0].masked_fill(p < p[1], -INF), -1)
    assert_distributed(histogram(LOGITS, 20_000, top_p=largest_two - 0.01), kept_two)
    assert_distributed(histogram(LOGITS, 20_000, top_p=largest_two + 0.01), kept_four)  # tokens 1 and 4 tie


def test_top_p_looks_at_what_top_k_left():
    """Among the two best, the best alone holds more than half, though not of the whole distribution."""
    p = torch.softmax(LOGITS[0], -1)
    assert p[7] < 0.5
    assert draw(LOGITS.expand(500, -1), top_k=2, top_p=0.5, positions=torch.arange(500)).unique().tolist() == [7]


def test_a_tiny_top_p_keeps_the_best():
    assert draw(LOGITS.expand(100, -1), top_p=1e-6, positions=torch.arange(100)).unique().tolist() == [7]


def test_filters_that_keep_more_than_the_first_window():
    """A flat row: top-p and top-k reach far beyond the tokens that are looked at first."""
    logits = torch.linspace(0, 1, 6000)[None]
    p = torch.softmax(logits[0], -1)
    ids = draw(logits.expand(3000, -1), top_p=0.5, positions=torch.arange(3000))
    ascending = p.cumsum(0)
    border = int((ascending > 0.5).nonzero()[0])
    assert abs(int(ids.min()) - border) <= 20
    assert int(ids.max()) > 5950
    ids = draw(logits.expand(3000, -1), top_k=1000, positions=torch.arange(3000))
    assert 5000 <= int(ids.min()) < 5020


def test_greedy_rows_are_argmax_whatever_else_is_set():
    logits = torch.randn(17, 123)
    ids = draw(logits, temperature=0.0, top_k=3, top_p=0.1, seeds=torch.arange(17))
    assert torch.equal(ids, logits.argmax(-1))


def test_a_low_temperature_becomes_greedy_without_overflow():
    logits = torch.randn(17, 123) * 100
    assert torch.equal(draw(logits, temperature=1e-30, seeds=torch.arange(17)), logits.argmax(-1))


@pytest.mark.parametrize("row", [[1, NAN, 9], [1, INF, 9], [-INF] * 3])
@pytest.mark.parametrize("parameters", [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}], ids=str)
def test_a_row_that_is_not_finite_gives_minus_one(row, parameters):
    ids = draw(torch.tensor([row, [0.0, 50, 0]]), **parameters)
    assert ids.tolist() == [-1, 1]


def test_forbidden_tokens_are_never_drawn():
    logits = LOGITS.clone()
    logits[0, [7, 0]] = -INF
    counts = histogram(logits, 20_000)
    assert_distributed(counts, torch.softmax(logits[0], -1))


def test_a_draw_does_not_depend_on_the_batch():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(40, 3000, generator=generator) * 3
    temperature = [(0.0, 0.7, 1.0, 1.5)[i % 4] for i in range(40)]
    top_k = [(0, 5, 700, 0, 0)[i % 5] for i in range(40)]
    top_p = [(1.0, 0.9, 0.3)[i % 3] for i in range(40)]
    seeds, positions = torch.arange(40) * 10**15 - 7, torch.arange(40) * 3
    together = draw(
        logits, temperature=temperature, top_k=top_k, top_p=top_p, seeds=seeds, positions=positions
    ).tolist()
    alone = [
        int(
            draw(
                logits[i : i + 1],
                temperature=temperature[i],
                top_k=top_k[i],
                top_p=top_p[i],
                seeds=int(seeds[i]),
                positions=int(positions[i]),
            )
        )
        for i in range(40)
    ]
    assert alone == together


def test_noise_made_for_few_tokens_equals_noise_made_for_all():
    """With an offset that rules most tokens out, the same winners come of the sparse path."""
    logits = torch.randn(8, 1024)
    widened = torch.full((8, 8192), -100.0)
    widened[:, :1024] = logits
    seeds = torch.arange(8)
    assert torch.equal(draw(logits, seeds=seeds), draw(widened, seeds=seeds))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_seed_and_position_decide_alone(dtype):
    logits = torch.zeros(1, 4096, dtype=dtype)
    first = draw(logits, seeds=11, positions=3)
    assert torch.equal(first, draw(logits, seeds=11, positions=3))
    others = [draw(logits, seeds=11, positions=4), draw(logits, seeds=12, positions=3)]
    others.append(draw(logits, seeds=11 + 2**32, positions=3))
    assert all(int(other) != int(first) for other in others)


def test_no_rows():
    assert draw(torch.zeros(0, 7)).shape == (0,)
