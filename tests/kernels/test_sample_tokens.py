from __future__ import annotations

import math

import pytest
import torch

from kernels.gumbel_argmax import dense_gumbel
from kernels.sample_tokens import sample_tokens, sample_tokens_reference, sample_tokens_triton
from tests.kernels.lanes import GPU, INTERPRET, REFERENCE

INF, NAN = float("inf"), float("nan")

# Infinities are ordinary here; numpy, in the interpreter, would warn of them.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def columns(rows, device="cpu", *, temperature=1.0, top_k=0, top_p=1.0, seeds=0, positions=0, min_p=None):
    """Parameters may be one value for all rows or a list."""

    def column(value, dtype):
        return torch.as_tensor(value, dtype=dtype).expand(rows).contiguous().to(device)

    return (
        column(temperature, torch.float32),
        column(top_k, torch.int32),
        column(top_p, torch.float32),
        column(seeds, torch.int64),
        column(positions, torch.int64),
        None if min_p is None else column(min_p, torch.float32),
    )


@pytest.fixture(params=[REFERENCE, GPU])
def draw(request):
    """Through the launcher. The interpreter is too slow for statistics; the last tests of this file compare it."""
    device = request.param.device

    def draw_on_device(logits, **parameters):
        return sample_tokens(logits.to(device), *columns(len(logits), device, **parameters)).cpu()

    return draw_on_device


def histogram(draw, logits, count, **parameters):
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
def test_draws_follow_the_softmax(draw, temperature):
    counts = histogram(draw, LOGITS, 40_000, temperature=temperature)
    assert_distributed(counts, torch.softmax(LOGITS[0] / temperature, -1))


def test_draws_over_seeds_follow_the_softmax_too(draw):
    ids = draw(LOGITS.expand(40_000, -1), seeds=torch.arange(40_000), positions=5)
    assert_distributed(torch.bincount(ids, minlength=11), torch.softmax(LOGITS[0], -1))


def test_a_large_flat_vocabulary_is_drawn_evenly(draw):
    counts = histogram(draw, torch.zeros(1, 5000), 4000).view(50, 100).sum(1)
    assert_distributed(counts, torch.full((50,), 1 / 50))


def test_top_k_keeps_the_k_largest_and_ties(draw):
    kept = torch.softmax(LOGITS[0].masked_fill(LOGITS[0] < 1.0, -INF), -1)
    for k in (3, 4):  # tokens 1 and 4 tie for the third place
        assert_distributed(histogram(draw, LOGITS, 20_000, top_k=k), kept)


def test_top_p_keeps_the_token_that_crosses(draw):
    p = torch.softmax(LOGITS[0], -1)
    largest_two = float(p[7] + p[0])
    kept_two = torch.softmax(LOGITS[0].masked_fill(p < p[0], -INF), -1)
    kept_four = torch.softmax(LOGITS[0].masked_fill(p < p[1], -INF), -1)
    assert_distributed(histogram(draw, LOGITS, 20_000, top_p=largest_two - 0.01), kept_two)
    assert_distributed(histogram(draw, LOGITS, 20_000, top_p=largest_two + 0.01), kept_four)  # tokens 1 and 4 tie


def test_top_p_looks_at_what_top_k_left(draw):
    """Among the two best, the best alone holds more than half, though not of the whole distribution."""
    p = torch.softmax(LOGITS[0], -1)
    assert p[7] < 0.5
    assert draw(LOGITS.expand(500, -1), top_k=2, top_p=0.5, positions=torch.arange(500)).unique().tolist() == [7]


def test_a_tiny_top_p_keeps_the_best(draw):
    assert draw(LOGITS.expand(100, -1), top_p=1e-6, positions=torch.arange(100)).unique().tolist() == [7]


def test_filters_that_keep_more_than_the_first_window(draw):
    """A flat row: top-p and top-k reach far beyond the tokens that are looked at first."""
    logits = torch.linspace(0, 1, 6000)[None]
    p = torch.softmax(logits[0], -1)
    ids = draw(logits.expand(1500, -1), top_p=0.5, positions=torch.arange(1500))
    ascending = p.cumsum(0)
    border = int((ascending > 0.5).nonzero()[0])
    assert abs(int(ids.min()) - border) <= 20
    assert int(ids.max()) > 5950
    ids = draw(logits.expand(1500, -1), top_k=1000, positions=torch.arange(1500))
    assert 5000 <= int(ids.min()) < 5020


def test_top_p_looks_at_what_a_top_k_beyond_the_first_window_left(draw):
    """Of a row so flat that the best 1000 are about equal, top-p keeps half of them, not half of the first window."""
    logits = torch.linspace(0, 0.001, 6000)[None]
    ids = draw(logits.expand(3000, -1), top_k=1000, top_p=0.5, positions=torch.arange(3000))
    assert 5495 <= int(ids.min()) < 5510


def test_greedy_rows_are_argmax_whatever_else_is_set(draw):
    logits = torch.randn(17, 123)
    ids = draw(logits, temperature=0.0, top_k=3, top_p=0.1, seeds=torch.arange(17))
    assert torch.equal(ids, logits.argmax(-1))


def test_a_low_temperature_becomes_greedy_without_overflow(draw):
    logits = torch.randn(17, 123) * 100
    assert torch.equal(draw(logits, temperature=1e-30, seeds=torch.arange(17)), logits.argmax(-1))


@pytest.mark.parametrize("row", [[1, NAN, 9], [1, INF, 9], [-INF] * 3])
@pytest.mark.parametrize("parameters", [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}], ids=str)
def test_a_row_that_is_not_finite_gives_minus_one(draw, row, parameters):
    ids = draw(torch.tensor([row, [0.0, 50, 0]]), **parameters)
    assert ids.tolist() == [-1, 1]


def test_forbidden_tokens_are_never_drawn(draw):
    logits = LOGITS.clone()
    logits[0, [7, 0]] = -INF
    counts = histogram(draw, logits, 20_000)
    assert_distributed(counts, torch.softmax(logits[0], -1))


def test_a_draw_does_not_depend_on_the_batch(draw):
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_seed_and_position_decide_alone(draw, dtype):
    logits = torch.zeros(1, 4096, dtype=dtype)
    first = draw(logits, seeds=11, positions=3)
    assert torch.equal(first, draw(logits, seeds=11, positions=3))
    others = [draw(logits, seeds=11, positions=4), draw(logits, seeds=12, positions=3)]
    others.append(draw(logits, seeds=11 + 2**32, positions=3))
    assert all(int(other) != int(first) for other in others)


def test_no_rows(draw):
    assert draw(torch.zeros(0, 7)).shape == (0,)


def test_min_p_drops_what_is_far_less_probable_than_the_best(draw):
    ratio = torch.exp(LOGITS[0] - LOGITS[0].max())
    kept = torch.softmax(LOGITS[0].masked_fill(ratio < 0.2, -INF), -1)
    assert 2 < int((kept > 0).sum()) < 8
    assert_distributed(histogram(draw, LOGITS, 20_000, min_p=0.2), kept)
    assert draw(LOGITS.expand(200, -1), min_p=1.0, positions=torch.arange(200)).unique().tolist() == [7]


def test_top_p_looks_at_what_min_p_left(draw):
    """Of the four that min_p leaves, the best two hold 0.7."""
    ratio = torch.exp(LOGITS[0] - LOGITS[0].max())
    left = torch.softmax(LOGITS[0].masked_fill(ratio < 0.2, -INF), -1)
    share = float(left[7]) + 0.01
    assert float(torch.softmax(LOGITS[0], -1)[[7, 0]].sum()) < float(left[[7, 0]].sum())
    ids = draw(LOGITS.expand(500, -1), min_p=0.2, top_p=share, positions=torch.arange(500))
    assert ids.unique().tolist() == [0, 7]


def assert_same_draws(got, logits, parameters):
    """As the reference's, but for what rounding may decide: scores, or a mass at the border, equal to 10^-5."""
    temperature, top_k, top_p, seeds, positions, min_p = parameters
    want = sample_tokens_reference(logits, *parameters)
    for row in (got != want).nonzero().view(-1).tolist():
        one = slice(row, row + 1)
        keys = seeds[one], positions[one], None if min_p is None else min_p[one]
        nearby = {
            int(sample_tokens_reference(logits[one], temperature[one], top_k[one], top_p[one] * nudge, *keys))
            for nudge in (1 - 1e-5, 1 + 1e-5)
        }
        if int(got[row]) not in nearby:
            x = logits[one].float() / temperature[row]
            scores = (x + dense_gumbel(x, *keys[:2]))[0]
            assert abs(scores[got[row]] - scores[want[row]]) < 1e-5 * abs(x).max()
    assert (got != want).sum() <= 1 + len(want) // 50


def mixture(rows, generator):
    """Parameters of every kind beside each other."""

    def some(*values):
        return [values[i] for i in torch.randint(len(values), (rows,), generator=generator).tolist()]

    return {
        "temperature": some(0.0, 0.3, 1.0, 1.0, 1.7),
        "top_k": some(0, 0, 1, 2, 5, 50, 100, 1000, 10**6),
        "top_p": some(1.0, 1.0, 0.01, 0.5, 0.9, 0.999),
        "seeds": torch.randint(-(2**62), 2**62, (rows,), generator=generator),
        "positions": torch.randint(0, 2**40, (rows,), generator=generator),
    }


KERNELS = [INTERPRET, GPU]


def cases():
    """(size, has_min_p, dtype, lane): all on the GPU, a few in the slow interpreter."""
    interpreted = {(1, False, torch.bfloat16), (129, True, torch.float32), (1000, False, torch.bfloat16)}
    for size in (1, 17, 128, 129, 1000, 4099):
        for has_min_p in (False, True):
            for dtype in (torch.bfloat16, torch.float32):
                yield pytest.param(size, has_min_p, dtype, *GPU.values, marks=GPU.marks)
                if (size, has_min_p, dtype) in interpreted:
                    yield pytest.param(size, has_min_p, dtype, *INTERPRET.values, marks=INTERPRET.marks)


@pytest.mark.parametrize(("size", "has_min_p", "dtype", "lane"), list(cases()))
def test_the_kernel_draws_as_the_reference(size, has_min_p, dtype, lane):
    generator = torch.Generator().manual_seed(size)
    rows = 123 if lane.name == "gpu" else 8
    logits = (torch.randn(rows, size, generator=generator) * 3).to(dtype)
    logits[3] = 0
    logits[4, ::2] = -INF
    logits[5] = (logits[5] * 2).round() / 2  # ties
    logits[6] = -abs(logits[6]) * 1e-3
    logits[7, 0] = 1e30 if dtype == torch.float32 else 1e10
    parameters = mixture(rows, generator)
    if has_min_p:
        parameters["min_p"] = [(0.0, 0.02, 0.3)[i % 3] for i in range(rows)]
    parameters = columns(rows, **parameters)
    on_device = [None if t is None else lane.put(t) for t in parameters]
    got = lane(sample_tokens, sample_tokens_triton)(lane.put(logits), *on_device).cpu()
    assert_same_draws(got, logits, parameters)


@pytest.mark.parametrize("lane", KERNELS)
@pytest.mark.parametrize("row", [[1, NAN, 9], [1, INF, 9], [-INF] * 3])
def test_the_kernel_refuses_what_is_not_finite(row, lane):
    op = lane(sample_tokens, sample_tokens_triton)
    for parameters in ({}, {"temperature": 0.0}, {"top_k": 2, "top_p": 0.5}):
        logits = lane.put(torch.tensor([row, [0.0, 50, 0]]))
        assert op(logits, *columns(2, lane.device, **parameters)).tolist() == [-1, 1]


@pytest.mark.parametrize("lane", KERNELS)
def test_the_kernel_reads_no_logit_beyond_its_row(lane):
    packed = torch.full((5, 1200), NAN)
    packed[:, :1100] = torch.randn(5, 1100)
    parameters = {"seeds": list(range(5)), "top_k": [0, 3, 1000, 0, 7], "top_p": [1, 1, 0.9, 0.5, 0.3]}
    logits = lane.put(packed)[:, :1100]
    got = lane(sample_tokens, sample_tokens_triton)(logits, *columns(5, lane.device, **parameters)).cpu()
    assert_same_draws(got, packed[:, :1100], columns(5, **parameters))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])
def test_the_kernel_draws_as_the_reference_from_a_whole_vocabulary(scale, dtype, lane):
    generator = torch.Generator().manual_seed(5)
    logits = (torch.randn(130, 128256, generator=generator) * scale).to(dtype).to(lane.device)
    parameters = columns(130, lane.device, **mixture(130, generator))
    assert_same_draws(sample_tokens(logits, *parameters), logits, parameters)


@pytest.mark.parametrize("lane", [GPU])
def test_logits_beyond_int32(lane):
    rows = 2**31 // 128256 + 2
    logits = torch.zeros(rows, 128256, dtype=torch.bfloat16, device=lane.device)
    logits[-1, 77] = 30
    logits[0, 5] = 30
    ids = sample_tokens(logits, *columns(rows, lane.device, top_k=[2] * (rows - 1) + [0], positions=torch.arange(rows)))
    assert ids[[0, -1]].tolist() == [5, 77]
