from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from kernels.linear_add_norm import DeferredNorm
from kernels.ordered_linear import ordered_add_norm_triton, ordered_linear_triton
from kernels.ordered_tiles import TileConfig, num_parts
from kernels.skinny_linear import new_arrivals
from kernels.unsplit_linear import takes_parts, unsplit_add_norm_triton, unsplit_linear_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.test_ordered_linear import EPS, naive, naive_add_norm, random
from tests.kernels.tolerances import assert_close


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("rows", [0, 1, 70])
@pytest.mark.parametrize("strips", [1, 5])
def test_divides_and_gates_what_cublas_multiplies(rows, strips, lane):
    """Which cuBLAS has rounded."""
    x, weight, bias = random(lane, rows, 264), random(lane, 2064, 264, scale=0.06), random(lane, 2064)
    normed = DeferredNorm(x, (torch.rand(strips, rows) * 100 + 10).to(x.device), EPS)
    assert_close(unsplit_linear_triton(x, weight), naive(x, weight))
    product = naive(x, weight).to(x.dtype).double()
    divided = product / (normed.squares.double().sum(0) / 264 + EPS).sqrt()[:, None]
    for given in (bias, None):
        want = divided if given is None else divided + given.double()
        gate, up = want.chunk(2, -1)
        assert_close(unsplit_linear_triton(normed, weight, given), want)
        assert_close(unsplit_linear_triton(normed, weight, given, gated=True), gate.sigmoid() * gate * up)


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("rows", [0, 1, 70])
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("features", [40, 304])
def test_parts_residual_and_norm_are_added(features, parts, rows, lane):
    x, weight, bias = random(lane, rows, 256), random(lane, features, 256, scale=0.06), random(lane, features)
    residual, norm_weight = random(lane, rows, features), random(lane, features)
    for given in (bias, None):
        normed, total = unsplit_add_norm_triton(x, weight, given, residual, norm_weight, EPS, parts)
        want_normed, want_total = naive_add_norm(x, weight, given, residual, norm_weight, EPS)
        assert_close(total, want_total)
        assert_close(normed.divided(), want_normed)
        assert normed.squares.shape == (1, rows)


def test_parts_of_one_length():
    assert takes_parts(torch.empty(4096, 14336), 2) and takes_parts(torch.empty(1024, 3072), 4)
    assert not takes_parts(torch.empty(4104, 2056), 2)


SHAPES = [(6144, 4096), (4096, 4096), (4096, 14336), (28672, 4096), (128256, 4096), (1024, 3072), (6144, 1024)]
SMALL_SHAPES = [(1152, 896), (896, 4864), (9728, 896), (576, 1536), (3072, 576), (151936, 1024), (2048, 8192)]
TILES = TileConfig(128, 128, 64, num_warps=8, num_stages=4)


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize(("features", "size"), SHAPES + SMALL_SHAPES)
@torch.inference_mode()
def test_cublas_sums_in_the_order_of_our_tiles_for_any_number_of_rows(features, size, lane):
    """Every element, of every number up to 640."""

    def values(*shape, scale=1.0):
        return (torch.randn(*shape, device=lane.device) * scale).bfloat16()

    most = 4096 if features <= 32768 else 640
    x, residual = values(most, size), values(most, features)
    weight, bias, norm_weight = values(features, size, scale=size**-0.5), values(features), values(features)
    normed = DeferredNorm(x, torch.rand(16, most, device=lane.device) * 100 + 10, EPS)
    arrivals, parts = new_arrivals(features, x.device), num_parts(features, size)
    products = {
        "plain": lambda rows, multiply: multiply(x[:rows], weight, None),
        "divided": lambda rows, multiply: multiply(first(normed, rows), weight, bias),
        "gated": lambda rows, multiply: multiply(first(normed, rows), weight, bias, gated=True),
    }
    by_tiles = partial(ordered_linear_triton, arrivals=arrivals, config=TILES, parts=1)
    wanted = {name: of(most, by_tiles) for name, of in products.items()}
    into = weight, bias, residual, norm_weight, EPS
    wanted_normed, wanted_total = ordered_add_norm_triton(x, *into, arrivals, TILES, parts)
    wanted_squares = added_pair_by_pair(wanted_normed.squares)
    wrong = Counter()
    for rows in (*range(65, 640), *range(640, most + 1, 61)):
        for name, of in products.items():
            wrong[name] += not torch.equal(of(rows, unsplit_linear_triton), wanted[name][:rows])
        if takes_parts(weight, parts):
            got, total = unsplit_add_norm_triton(x[:rows], weight, bias, residual[:rows], norm_weight, EPS, parts)
            wrong["total"] += not torch.equal(total, wanted_total[:rows])
            wrong["weighted"] += not torch.equal(got.weighted, wanted_normed.weighted[:rows])
            wrong["squares"] += not torch.equal(got.squares[0], wanted_squares[:rows])
    assert not wrong.total(), wrong


def first(normed, rows):
    return normed._replace(weighted=normed.weighted[:rows], squares=normed.squares[:, :rows].contiguous())


def added_pair_by_pair(squares):
    num_strips = len(squares)
    squares = F.pad(squares, (0, 0, 0, (1 << (num_strips - 1).bit_length()) - num_strips))
    while len(squares) > 1:
        squares = squares[: len(squares) // 2] + squares[len(squares) // 2 :]
    return squares[0]
