from __future__ import annotations

import pytest
import torch

from kernels.linear_add_norm import DeferredNorm, linear_add_norm
from kernels.norm_linear import norm_linear, norm_linear_triton
from kernels.skinny_config import SkinnyConfig
from kernels.skinny_linear import new_arrivals
from tests.kernels.lanes import GPU, LANES
from tests.kernels.replays import launched_and_replayed
from tests.kernels.tolerances import assert_close

EPS = 1e-5


def case(lane, rows, features, size, num_parts=3):
    """In bf16, except where Triton's interpreter would have to multiply it, which it cannot. What is not of these rows
    is NaN."""
    width = 16 if rows <= 16 else 64
    weighted, weight, bias = torch.randn(rows, size), torch.randn(features, size) * size**-0.5, torch.randn(features)
    squares = torch.full((num_parts, width), float("nan"))
    squares[:, :rows] = torch.rand(num_parts, rows) * size
    plain = lane.name == "interpret"
    weighted, weight, bias = (lane.put(t if plain else t.bfloat16()) for t in (weighted, weight, bias))
    return DeferredNorm(weighted, lane.put(squares), EPS), weight, bias


def naive(normed, weight, bias=None, gated=False):
    weighted, squares, _ = normed
    mean_square = squares[:, : weighted.shape[0]].double().sum(0) / weighted.shape[1]
    product = weighted.double() / (mean_square + EPS).sqrt()[:, None] @ weight.double().T
    product = product if bias is None else product + bias.double()
    if gated:
        gate, up = product.chunk(2, -1)
        product = gate * gate.sigmoid() * up
    return product


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("rows", [0, 1, 5, 16, 17, 64])
@pytest.mark.parametrize(("features", "size", "num_parts"), [(1, 1, 1), (17, 123, 5), (130, 300, 32)])
def test_follows_the_formula(features, size, num_parts, rows, lane):
    normed, weight, bias = case(lane, rows, features, size, num_parts)
    op, arrivals = lane(norm_linear, norm_linear_triton), new_arrivals(features, weight.device)
    for given, counts in ((None, None), (bias, arrivals)):
        assert_close(op(normed, weight, given, counts), naive(normed, weight, given))
    assert not arrivals.any()


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("rows", [0, 1, 5, 17])
@pytest.mark.parametrize(("features", "size"), [(2, 1), (34, 123), (130, 300), (256, 64)])
def test_gate_and_up(features, size, rows, lane):
    normed, weight, bias = case(lane, rows, features, size)
    op, arrivals = lane(norm_linear, norm_linear_triton), new_arrivals(features, weight.device)
    for given, counts in ((None, None), (bias, arrivals)):
        out = op(normed, weight, given, counts, True)
        assert_close(out, naive(normed, weight, given, gated=True))
    assert not arrivals.any()


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("gated", [False, True])
def test_parts_of_k_are_merged_before_the_division(gated, lane):
    config = SkinnyConfig(64, 64, num_warps=4, num_stages=3, num_splits=3)
    normed, weight, bias = case(lane, 20, 100, 200)
    arrivals = new_arrivals(100, weight.device)
    for _ in range(2):
        out = norm_linear_triton(normed, weight, bias, arrivals, gated, config)
        assert_close(out, naive(normed, weight, bias, gated))
        assert not arrivals.any()


@pytest.mark.usefixtures("rows_alone")
@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("gated", [False, True])
def test_a_row_does_not_depend_on_the_others(gated, lane):
    normed, weight, bias = case(lane, 64, 200, 96)
    op, arrivals = lane(norm_linear, norm_linear_triton), new_arrivals(200, weight.device)

    def of_rows(begin, end):
        squares = torch.full((3, 16 if end - begin <= 16 else 64), float("nan"), device=weight.device)
        squares[:, : end - begin] = normed.squares[:, begin:end]
        return op(DeferredNorm(normed.weighted[begin:end], squares, EPS), weight, bias, arrivals, gated)

    few, many = of_rows(0, 16), of_rows(0, 64)
    for row in (0, 7, 15):
        assert torch.equal(of_rows(row, row + 1), few[row : row + 1])
    assert torch.equal(of_rows(40, 60), many[40:60])


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("rows", [1, 16, 17, 64])
@pytest.mark.parametrize(
    ("features", "size", "num_parts", "gated"),
    [(6144, 4096, 128, False), (28672, 4096, 64, True), (4096, 1024, 32, False), (6144, 1024, 16, True)],
)
def test_whole_models_shapes(features, size, num_parts, gated, rows, lane):
    with torch.device(lane.device):
        normed, weight, bias = case(lane, rows, features, size, num_parts)
    for arrivals in (None, new_arrivals(features, weight.device)):
        out = norm_linear(normed, weight, bias, arrivals, gated)
        assert_close(out, naive(normed, weight, bias, gated))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("rows", [4, 64])
def test_a_row_of_launches_in_a_graph(rows, lane):
    """Each is on the device while the one before still computes what it will read; some merge parts of K."""
    size, arrivals = 1536, new_arrivals(2 * 1536, torch.device("cuda"))
    with torch.device(lane.device):
        ups = [(torch.randn(2 * size, size) * size**-0.5).bfloat16() for _ in range(4)] * 3
        downs = [(torch.randn(size, size) * size**-0.5).bfloat16() for _ in range(4)] * 3
        norm_weight = (1 + 0.1 * torch.randn(size)).bfloat16()
        x, residual = torch.randn(rows, size).bfloat16(), torch.randn(rows, size).bfloat16()

    def chain():
        inner, stream = x, residual
        for up, down in zip(ups, downs, strict=True):
            normed, stream = linear_add_norm(inner, down, None, stream, norm_weight, EPS, arrivals)
            inner = norm_linear(normed, up, None, arrivals, gated=True)
        return stream

    want = launched_and_replayed(chain)
    inner, stream = x.double(), residual.double()
    for up, down in zip(ups, downs, strict=True):
        stream = stream + inner @ down.double().T
        normed = stream / (stream.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * norm_weight.double()
        gate, up_ = (normed @ up.double().T).chunk(2, -1)
        inner = gate * gate.sigmoid() * up_
    assert (want.double() - stream).norm() < 0.05 * stream.norm()
