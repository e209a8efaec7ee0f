from __future__ import annotations

import pytest
import torch

from kernels.linear_add_norm import DeferredNorm
from kernels.ordered_linear import ordered_add_norm, ordered_add_norm_triton, ordered_linear, ordered_linear_triton
from kernels.ordered_tiles import TileConfig
from kernels.skinny_linear import new_arrivals
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import assert_close

BY_PARTS = TileConfig(64, 128, 64, num_warps=4, num_stages=3, by_parts=True)
TILES = [
    TileConfig(64, 64, 128, num_warps=4, num_stages=4),
    TileConfig(64, 128, 64, num_warps=4, num_stages=4),
    TileConfig(128, 128, 64, num_warps=8, num_stages=4),
    TileConfig(128, 256, 64, num_warps=8, num_stages=3),
    BY_PARTS,
    TileConfig(128, 128, 64, num_warps=4, num_stages=3, by_parts=True),
    TileConfig(256, 64, 64, num_warps=8, num_stages=5),
    TileConfig(256, 128, 64, num_warps=8, num_stages=4),
]


def naive(x, weight, bias=None):
    product = x.double() @ weight.double().T
    return product if bias is None else product + bias.double()


def random(lane, *shape, scale=1.0):
    """In bf16, except where Triton's interpreter would have to multiply it, which it cannot."""
    values = torch.randn(*shape) * scale
    return lane.put(values if lane.name == "interpret" else values.bfloat16())


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("rows", [0, 1, 17, 65, 200])
@pytest.mark.parametrize(("features", "size"), [(8, 8), (136, 72), (304, 256)])
def test_follows_the_formula(features, size, rows, lane):
    x, weight, bias = random(lane, rows, size), random(lane, features, size, scale=size**-0.5), random(lane, features)
    arrivals = new_arrivals(features, x.device)
    linear = lane(ordered_linear, ordered_linear_triton)
    assert_close(linear(x, weight, None, arrivals), naive(x, weight))
    assert_close(linear(x, weight, bias, arrivals), naive(x, weight, bias))
    assert not arrivals.any()


def naive_add_norm(x, weight, bias, residual, norm_weight, eps):
    total = naive(x, weight, bias) + residual.double()
    return total * norm_weight.double() / (total.pow(2).mean(-1, keepdim=True) + eps).sqrt(), total


def naive_divided(normed):
    """Not rounded, as the kernels divide their product."""
    squares = normed.squares[:, : len(normed.weighted)].double().sum(0)
    return normed.weighted.double() / (squares / normed.weighted.shape[1] + normed.eps).sqrt()[:, None]


def naive_gated(x, weight, bias=None):
    gate, up = naive(x, weight, bias).chunk(2, -1)
    return gate.sigmoid() * gate * up


EPS = 1e-2
"""So large that it shows."""


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("rows", [0, 1, 17, 65, 200])
@pytest.mark.parametrize(("features", "size"), [(16, 72), (304, 256)])
def test_residual_norm_and_gate_are_fused_for_any_number_of_rows(features, size, rows, lane):
    """A product into the stream, and one out of it, each with a bias and without."""
    x, residual = random(lane, rows, size), random(lane, rows, features)
    into, out_of = random(lane, features, size, scale=size**-0.5), random(lane, 176, features, scale=features**-0.5)
    biases, norm_weight = (random(lane, features), random(lane, 176)), random(lane, features)
    arrivals = new_arrivals(max(features, 176), x.device)
    add_norm, linear = lane(ordered_add_norm, ordered_add_norm_triton), lane(ordered_linear, ordered_linear_triton)
    for bias, out_bias in (biases, (None, None)):
        normed, total = add_norm(x, into, bias, residual, norm_weight, EPS, arrivals)
        want_normed, want_total = naive_add_norm(x, into, bias, residual, norm_weight, EPS)
        assert_close(total, want_total)
        assert_close(normed.divided(), want_normed)
        divided = normed.divided() if lane.name == "reference" else naive_divided(normed)
        assert_close(linear(normed, out_of, out_bias, arrivals), naive(divided, out_of, out_bias))
        gated = linear(normed, out_of, out_bias, arrivals, gated=True)
        assert_close(gated, naive_gated(divided, out_of, out_bias))
        assert not arrivals.any()


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("parts", [2, 3])
def test_what_is_fused_with_parts(parts, lane):
    x, weight, residual = random(lane, 70, 264), random(lane, 144, 264, scale=0.06), random(lane, 70, 144)
    arrivals, norm_weight = new_arrivals(144, x.device), random(lane, 144)
    squares = (torch.rand(5, 70) * 100 + 10).to(x.device)
    want = naive_add_norm(x, weight, None, residual, norm_weight, EPS)
    want_gated = naive_gated(DeferredNorm(x, squares, EPS).divided(), weight)
    for rows, config in ((3, None), (70, None), (70, BY_PARTS)):
        few, some = x[:rows], residual[:rows]
        normed, total = ordered_add_norm_triton(few, weight, None, some, norm_weight, EPS, arrivals, config, parts)
        assert_close(normed.divided(), want[0][:rows])
        assert_close(total, want[1][:rows])
        deferred = DeferredNorm(few, squares[:, :rows].contiguous(), EPS)
        got = ordered_linear_triton(deferred, weight, None, arrivals, config, parts, gated=True)
        assert_close(got, want_gated[:rows])
        assert not arrivals.any()


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_are_added_one_by_one(parts, lane):
    """More than there are, too."""
    x, weight, bias = random(lane, 70, 264), random(lane, 72, 264, scale=0.06), random(lane, 72)
    arrivals = new_arrivals(72, x.device)
    for rows, config in ((3, None), (70, None), (70, BY_PARTS)):
        got = ordered_linear_triton(x[:rows], weight, bias, arrivals, config, parts)
        assert_close(got, naive(x[:rows], weight, bias))
        assert not arrivals.any()


@pytest.mark.parametrize("lane", LANES[1:])
def test_tiles_at_the_edges_leave_the_rest_alone(lane):
    x, weight = random(lane, 130, 64), random(lane, 72, 64, scale=0.1)
    for config in TILES:
        assert_close(ordered_linear_triton(x, weight, config=config), naive(x, weight))


SHAPES = [(6144, 4096), (4096, 4096), (4096, 14336), (28672, 4096), (1024, 3072), (128256, 2048), (4104, 2056)]


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize(("features", "size"), SHAPES)
@torch.inference_mode()
def test_a_rows_bits_do_not_depend_on_how_many_there_are(features, size, lane):
    """Nor on its place among them, nor on what the others are."""
    x, weight, bias = random(lane, 8192, size), random(lane, features, size, scale=size**-0.5), random(lane, features)
    arrivals = new_arrivals(features, x.device)
    most = 8192 if features <= 32768 else 1024
    expected = torch.cat([ordered_linear(x[i : i + 1], weight, bias, arrivals) for i in range(12)])
    for rows in (2, 12, 16, 17, 33, 64, 65, 100, 128, 129, 200, 256, 300, 512, 777, 1024, 2048, 4096, 8192):
        if rows > most:
            break
        some = torch.randn_like(x[:rows])
        for first in {0, max(0, rows // 2 - 7), max(0, rows - 12)}:
            count = min(12, rows - first)
            some[first : first + count] = x[:count]
            got = ordered_linear(some, weight, bias, arrivals)[first : first + count]
            assert torch.equal(got, expected[:count]), (rows, first)


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("parts", [1, 2, 4])
@torch.inference_mode()
def test_tiles_of_every_shape_have_the_same_bits(parts, lane):
    x, weight = random(lane, 300, 4096), random(lane, 4096, 4096, scale=4096**-0.5)
    arrivals = new_arrivals(4096, x.device)
    expected = torch.cat([ordered_linear_triton(x[i : i + 1], weight, None, arrivals, parts=parts) for i in range(64)])
    for config in TILES:
        for rows in (1, 64, 300):
            got = ordered_linear_triton(x[:rows], weight, None, arrivals, config, parts)
            assert torch.equal(got[:64], expected[:rows]), (config, rows)


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize(("features", "size"), [(4096, 4096), (4096, 14336), (1024, 3072), (4104, 2056)])
@torch.inference_mode()
def test_a_rows_stream_and_norm_do_not_depend_on_how_many_rows_there_are(features, size, lane):
    """Nor do the bits of the products behind them, plain and gated."""
    most, count = 4096, 12
    x, residual = random(lane, count, size), random(lane, count, features, scale=30.0)
    into, out_of = random(lane, features, size, scale=size**-0.5), random(lane, 6144, features, scale=features**-0.5)
    bias, norm_weight = random(lane, 6144), random(lane, features)
    arrivals = new_arrivals(6144, x.device)

    def chain(x, residual):
        normed, total = ordered_add_norm(x, into, bias[:features], residual, norm_weight, 1e-5, arrivals)
        plain = ordered_linear(normed, out_of, bias, arrivals)
        return total, normed.weighted, plain, ordered_linear(normed, out_of, None, arrivals, gated=True)

    alone = [chain(x[i : i + 1], residual[i : i + 1]) for i in range(count)]
    expected = [torch.cat(each) for each in zip(*alone, strict=True)]
    for rows in (2, 12, 16, 17, 64, 65, 100, 128, 129, 200, 256, 300, 512, 777, 1024, most):
        some, before = torch.randn(rows, size).bfloat16().cuda(), torch.randn(rows, features).bfloat16().cuda()
        for first in {0, max(0, rows // 2 - 7), max(0, rows - count)}:
            place = slice(first, min(first + count, rows))
            some[place], before[place] = x[: place.stop - first], residual[: place.stop - first]
            for name, got, want in zip(
                ("total", "weighted", "plain", "gated"), chain(some, before), expected, strict=True
            ):
                assert torch.equal(got[place], want[: place.stop - first]), (name, rows, first)


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("parts", [1, 2, 4])
@torch.inference_mode()
def test_what_is_fused_has_the_same_bits_by_tiles_of_every_shape(parts, lane):
    x, weight = random(lane, 300, 4096), random(lane, 4096, 4096, scale=4096**-0.5)
    residual, norm_weight, arrivals = random(lane, 300, 4096), random(lane, 4096), new_arrivals(4096, x.device)

    def chain(rows, config=None):
        into = x[:rows], weight, None, residual[:rows], norm_weight, 1e-5
        normed, total = ordered_add_norm_triton(*into, arrivals, config, parts)
        return total, ordered_linear_triton(normed, weight, None, arrivals, config, parts, gated=True)

    expected = chain(64)
    for config in TILES:
        for rows in (1, 64, 300):
            for got, want in zip(chain(rows, config), expected, strict=True):
                assert torch.equal(got[:64], want[:rows]), (config, rows)


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("rows", [17, 40, 64])
@torch.inference_mode()
def test_few_rows_of_narrow_strips_go_by_tiles_with_spare_rows(rows, has_room, lane):
    """Which are read and go nowhere, whether they are there or not."""
    features, size = 2112, 136
    weight, norm_weight = random(lane, features, size, scale=size**-0.5), random(lane, features)
    behind, bias = random(lane, 176, features, scale=features**-0.5), random(lane, features)
    roomy, residual = random(lane, 64, size), random(lane, rows, features)
    x = roomy[:rows] if has_room else roomy[:rows].clone()
    assert_close(ordered_linear_triton(x, weight, bias), naive(x, weight, bias))
    normed, total = ordered_add_norm_triton(x, weight, bias, residual, norm_weight, EPS)
    want_normed, want_total = naive_add_norm(x, weight, bias, residual, norm_weight, EPS)
    assert normed.squares.shape == (66, rows)
    assert_close(total, want_total)
    assert_close(normed.divided(), want_normed)
    gated = ordered_linear_triton(normed, behind, gated=True)
    assert_close(gated, naive_gated(naive_divided(normed), behind))
