from __future__ import annotations

import pytest
import torch

from kernels.linear_add_norm import linear_add_norm, linear_add_norm_triton
from kernels.skinny_config import SkinnyConfig
from kernels.skinny_linear import new_arrivals
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import assert_close

EPS = 1e-5


def case(lane, rows, features, size):
    """In bf16, except where Triton's interpreter would have to multiply it, which it cannot."""
    shapes = (rows, size), (features, size), (features,), (rows, features), (features,)
    x, weight, bias, residual, norm_weight = (torch.randn(*shape) for shape in shapes)
    tensors = x, weight * size**-0.5, bias, residual, norm_weight
    return [lane.put(t if lane.name == "interpret" else t.bfloat16()) for t in tensors]


def check(got, x, weight, bias, residual, norm_weight):
    """The sum against the formula, the rest against the sum as it was rounded."""
    normed, total = got
    want = x.double() @ weight.double().T + residual.double()
    assert_close(total, want if bias is None else want + bias.double())
    exact = total.double()
    assert_close(normed.weighted, exact * norm_weight.double())
    squares = normed.squares[:, : x.shape[0]].double().sum(0)
    torch.testing.assert_close(squares, exact.pow(2).sum(-1), atol=1e-5, rtol=1e-5)
    divided = exact / (exact.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * norm_weight.double()
    assert_close(normed.divided(), divided)


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("rows", [0, 1, 5, 16, 17, 64])
@pytest.mark.parametrize(("features", "size"), [(1, 1), (17, 123), (130, 300)])
def test_follows_the_formula(features, size, rows, lane):
    x, weight, bias, residual, norm_weight = case(lane, rows, features, size)
    op, kept = lane(linear_add_norm, linear_add_norm_triton), residual.clone()
    arrivals = new_arrivals(features, x.device)
    for given, counts in ((None, None), (bias, arrivals)):
        got = op(x, weight, given, residual, norm_weight, EPS, counts)
        check(got, x, weight, given, residual, norm_weight)
    assert torch.equal(residual, kept), "others may still read it"
    assert not arrivals.any()


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("block_n", [32, 64])
@pytest.mark.parametrize("rows", [5, 20])
def test_squares_of_every_strip(rows, block_n, lane):
    """By strips so narrow that many rows are the product's left side, and by wider ones."""
    config = SkinnyConfig(block_n, 64, num_warps=block_n // 16, num_stages=3)
    x, weight, bias, residual, norm_weight = case(lane, rows, 100, 200)
    into = residual, norm_weight, EPS, None, config
    got = linear_add_norm_triton(x, weight, bias, *into, ordered=True)
    check(got, x, weight, bias, residual, norm_weight)
    exact = got[1].double()
    want = torch.stack([part.pow(2).sum(-1) for part in exact.split(block_n, -1)])
    torch.testing.assert_close(got[0].squares[:, :rows].double(), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("rows", [5, 20])
def test_parts_of_k_are_merged_before_the_sum(rows, lane):
    config = SkinnyConfig(64, 64, num_warps=4, num_stages=3, num_splits=3)
    x, weight, bias, residual, norm_weight = case(lane, rows, 100, 200)
    arrivals = new_arrivals(100, x.device)
    for _ in range(2):
        got = linear_add_norm_triton(x, weight, bias, residual, norm_weight, EPS, arrivals, config)
        check(got, x, weight, bias, residual, norm_weight)
        assert not arrivals.any()


@pytest.mark.parametrize("lane", LANES)
def test_rows_of_x_may_be_strided_and_end_where_they_end(lane):
    packed, weight, _, residual, norm_weight = case(lane, 5, 40, 200)
    packed[3:], packed[:, 100:] = float("nan"), float("nan")
    x, weight = packed[:3, :100], weight[:, :100].contiguous()
    got = lane(linear_add_norm, linear_add_norm_triton)(x, weight, None, residual[:3], norm_weight, EPS)
    check(got, x, weight, None, residual[:3], norm_weight)


@pytest.mark.usefixtures("rows_alone")
@pytest.mark.parametrize("lane", LANES[1:])
def test_a_row_does_not_depend_on_the_others(lane):
    x, weight, bias, residual, norm_weight = case(lane, 64, 200, 96)
    op, arrivals = lane(linear_add_norm, linear_add_norm_triton), new_arrivals(200, x.device)

    def of_rows(begin, end):
        (weighted, squares, _), total = op(x[begin:end], weight, bias, residual[begin:end], norm_weight, EPS, arrivals)
        return torch.cat((weighted, total, squares[:, : end - begin].T), -1)

    few, many = of_rows(0, 16), of_rows(0, 64)
    for row in (0, 7, 15):
        assert torch.equal(of_rows(row, row + 1), few[row : row + 1])
    assert torch.equal(of_rows(40, 60), many[40:60])


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("rows", [1, 16, 17, 64])
@pytest.mark.parametrize(("features", "size"), [(4096, 4096), (4096, 14336), (1024, 2048)])
def test_whole_models_shapes(features, size, rows, lane):
    with torch.device(lane.device):
        x, weight, bias, residual, norm_weight = case(lane, rows, features, size)
    for arrivals in (None, new_arrivals(features, x.device)):
        got = linear_add_norm(x, weight, bias, residual, norm_weight, EPS, arrivals)
        check(got, x, weight, bias, residual, norm_weight)
