from __future__ import annotations

import pytest
import torch

from kernels.quantized_weight import QuantizedWeight
from kernels.skinny_config import SkinnyConfig
from kernels.skinny_linear import new_arrivals, skinny_linear, skinny_linear_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.quantized_weights import KINDS, random_weight
from tests.kernels.replays import launched_and_replayed
from tests.kernels.tolerances import assert_close


def naive(x, weight, bias=None):
    product = x.double() @ weight.double().T
    return product if bias is None else product + bias.double()


def random(lane, *shape, scale=1.0):
    """In bf16, except where Triton's interpreter would have to multiply it, which it cannot."""
    values = torch.randn(*shape) * scale
    return values if lane.name == "interpret" else values.bfloat16()


def split_or_not(lane, features):
    arrivals = new_arrivals(features, torch.device(lane.device))
    yield None
    yield arrivals
    assert not arrivals.any()


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("rows", [0, 1, 5, 16, 17, 64])
@pytest.mark.parametrize(("features", "size"), [(1, 1), (17, 123), (300, 64), (130, 1000), (64, 513)])
def test_follows_the_formula(features, size, rows, lane):
    x, weight = lane.put(random(lane, rows, size)), lane.put(random(lane, features, size, scale=size**-0.5))
    for arrivals in split_or_not(lane, features):
        assert_close(lane(skinny_linear, skinny_linear_triton)(x, weight, None, arrivals), naive(x, weight))


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("num_splits", [2, 5])
def test_parts_of_any_number_are_merged(num_splits, lane):
    """More than there are tiles of K, too."""
    config = SkinnyConfig(64, 64, num_warps=4, num_stages=3, num_splits=num_splits)
    x, weight, bias = random(lane, 20, 200), random(lane, 100, 200, scale=0.07), random(lane, 100)
    x, weight, bias = lane.put(x), lane.put(weight), lane.put(bias)
    arrivals = new_arrivals(100, x.device)
    for _ in range(2):
        got = skinny_linear_triton(x, weight, bias, arrivals, config)
        assert_close(got, naive(x, weight, bias))
        assert not arrivals.any()


@pytest.mark.parametrize("lane", LANES)
def test_adds_the_bias(lane):
    x, weight, bias = (lane.put(t) for t in (random(lane, 3, 64), random(lane, 123, 64, scale=0.1), random(lane, 123)))
    assert_close(lane(skinny_linear, skinny_linear_triton)(x, weight, bias), naive(x, weight, bias))


@pytest.mark.parametrize("lane", LANES)
def test_rows_may_be_strided_and_end_where_they_end(lane):
    packed = random(lane, 5, 200)
    packed[3:], packed[:, 100:] = float("nan"), float("nan")
    x, weight = lane.put(packed)[:3, :100], lane.put(random(lane, 40, 100, scale=0.1))
    assert_close(lane(skinny_linear, skinny_linear_triton)(x, weight), naive(x, weight))


@pytest.mark.usefixtures("rows_alone")
@pytest.mark.parametrize("lane", LANES[1:])
def test_a_row_does_not_depend_on_the_others(lane):
    x, weight = lane.put(random(lane, 64, 96)), lane.put(random(lane, 200, 96, scale=0.1))
    op, arrivals = lane(skinny_linear, skinny_linear_triton), new_arrivals(200, x.device)
    together = op(x[:16], weight, None, arrivals)
    for row in (0, 7, 15):
        assert torch.equal(op(x[row : row + 1], weight, None, arrivals), together[row : row + 1])
    many = op(x, weight, None, arrivals)
    assert torch.equal(op(x[40:60], weight, None, arrivals), many[40:60])


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("rows", [1, 16, 17, 64])
@pytest.mark.parametrize(
    ("features", "size"), [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096), (1024, 3072)]
)
def test_whole_models_shapes(features, size, rows, lane):
    x = torch.randn(rows, size, device=lane.device).bfloat16()
    weight = (torch.randn(features, size, device=lane.device) * size**-0.5).bfloat16()
    want = naive(x, weight)
    for arrivals in split_or_not(lane, features):
        assert_close(skinny_linear(x, weight, None, arrivals), want)


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("rows", [4, 64])
def test_a_row_of_launches_in_a_graph(rows, lane):
    """Each asks for its weights while the one before still computes what it will read."""
    weights = [(torch.randn(1536, 1536, device=lane.device) * 1536**-0.5).bfloat16() for _ in range(4)] * 3
    x, arrivals = torch.randn(rows, 1536, device=lane.device).bfloat16(), new_arrivals(1536, torch.device("cuda"))

    def chain():
        y = x
        for weight in weights:
            y = skinny_linear(y, weight, None, arrivals)
        return y

    want = launched_and_replayed(chain)
    exact = x.double()
    for weight in weights:
        exact = exact @ weight.double().T
    assert (want.double() - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("lane", [GPU])
def test_fp32_is_not_rounded_on_the_way(lane):
    x, weight = lane.put(torch.randn(16, 1000)), lane.put(torch.randn(130, 1000) * 0.03)
    assert_close(skinny_linear(x, weight), naive(x, weight))


@pytest.mark.parametrize("lane", [GPU])
def test_weights_beyond_int32(lane):
    features = 2**31 // 4096 + 40
    weight = torch.zeros(features, 4096, device=lane.device, dtype=torch.bfloat16)
    weight[-1], weight[0] = 1, 2
    x = torch.full((2, 4096), 1 / 4096, device=lane.device, dtype=torch.bfloat16)
    got = skinny_linear(x, weight)
    assert got[:, [0, 1, -2, -1]].tolist() == [[2, 0, 0, 1]] * 2


def quantized(kind, lane, features, size, group=64):
    dtype = torch.float32 if lane.name == "interpret" else torch.bfloat16
    return random_weight(kind, features, size, dtype, lane.device, group)


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 5, 17, 64, 130])
def test_quantized_weights_follow_the_formula(rows, kind, lane):
    weight, exact = quantized(kind, lane, 100, 256)
    x, bias = lane.put(random(lane, rows, 256)), lane.put(random(lane, 100))
    for arrivals in split_or_not(lane, 100):
        got = lane(skinny_linear, skinny_linear_triton)(x, weight, bias, arrivals)
        assert_close(got, x.double() @ exact.T + bias.double())


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_quantized_weights_are_merged(kind, lane):
    weight, exact = quantized(kind, lane, 70, 384)
    block_k = weight.chunk if weight.is_int4 else 32
    config = SkinnyConfig(64, block_k, num_warps=4, num_stages=3, num_splits=5)
    x, arrivals = lane.put(random(lane, 20, 384)), new_arrivals(70, torch.device(lane.device))
    for _ in range(2):
        assert_close(skinny_linear_triton(x, weight, None, arrivals, config), x.double() @ exact.T)
        assert not arrivals.any()


@pytest.mark.parametrize("lane", LANES)
def test_fp8_rows_may_have_any_size(lane):
    weight, exact = quantized("fp8", lane, 33, 123)
    x = lane.put(random(lane, 3, 123))
    assert_close(lane(skinny_linear, skinny_linear_triton)(x, weight), x.double() @ exact.T)


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 16, 64, 256])
@pytest.mark.parametrize(("features", "size"), [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (1024, 3072)])
def test_quantized_weights_of_whole_models_shapes(features, size, rows, kind, lane):
    weight, exact = quantized(kind, lane, features, size, group=128)
    x = torch.randn(rows, size, device=lane.device).bfloat16()
    for arrivals in split_or_not(lane, features):
        assert_close(skinny_linear(x, weight, None, arrivals), x.double() @ exact.T)


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("kind", ["fp8", "int4", "int4 symmetric"])
def test_every_element_is_made_the_number_that_it_stands_for(kind, lane):
    """Each in turn by an x that has a single 1."""
    weight, exact = quantized(kind, lane, 64, 64)
    eye = torch.eye(64, device=lane.device).bfloat16()
    got = skinny_linear(eye, weight).double().T
    torch.testing.assert_close(got, exact, rtol=2**-8, atol=0)


@pytest.mark.parametrize("lane", [GPU])
def test_all_elements_of_fp8_are_known(lane):
    """Those that are no NaN: subnormal ones, zeros of both signs and the largest."""
    elements = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    elements = torch.where(elements.float().isnan(), 0.0, elements.float()).to(torch.float8_e4m3fn)
    weight = QuantizedWeight(elements[:, None].expand(256, 16).contiguous(), torch.ones(256, 1), None, torch.bfloat16)
    weight = QuantizedWeight(weight.elements.cuda(), weight.scales.cuda(), None, torch.bfloat16)
    x = torch.zeros(1, 16, device=lane.device, dtype=torch.bfloat16)
    x[0, 3] = 1
    assert torch.equal(skinny_linear(x, weight).float().cpu()[0], elements.float())
