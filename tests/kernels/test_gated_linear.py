from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.gated_linear import gated_linear, gated_linear_triton, is_copied_by_tiles
from kernels.rms_norm import rms_norm
from tests.kernels.lanes import GPU, LANES
from tests.kernels.replays import launched_and_replayed
from tests.kernels.tolerances import assert_close


def naive(x, weight):
    gate, up = (x.double() @ weight.double().T).chunk(2, dim=-1)
    return F.silu(gate) * up


def random(lane, *shape, scale=1.0):
    """In bf16, except where Triton's interpreter would have to multiply it, which it cannot."""
    values = torch.randn(*shape) * scale
    return lane.put(values if lane.name == "interpret" else values.bfloat16())


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("rows", [0, 1, 65, 128])
@pytest.mark.parametrize(("features", "size"), [(1, 8), (17, 120), (64, 64), (130, 1000)])
def test_follows_the_formula(features, size, rows, lane):
    x, weight = random(lane, rows, size), random(lane, 2 * features, size, scale=size**-0.5)
    assert_close(lane(gated_linear, gated_linear_triton)(x, weight), naive(x, weight))


@pytest.mark.parametrize("lane", LANES)
def test_rows_may_be_strided_and_end_where_they_end(lane):
    packed = random(lane, 5, 200)
    packed[3:], packed[:, 96:] = float("nan"), float("nan")
    x, weight = packed[:3, :96], random(lane, 80, 96, scale=0.1)
    assert_close(lane(gated_linear, gated_linear_triton)(x, weight), naive(x, weight))


@pytest.mark.usefixtures("rows_alone")
@pytest.mark.parametrize("lane", LANES[1:])
def test_a_row_does_not_depend_on_the_others(lane):
    x, weight = random(lane, 128, 96), random(lane, 300, 96, scale=0.1)
    op = lane(gated_linear, gated_linear_triton)
    together = op(x, weight)
    assert torch.equal(op(x[40:41], weight), together[40:41])
    assert torch.equal(op(x[50:], weight), together[50:])


def test_tiles_begin_at_multiples_of_16_bytes():
    matrix = torch.zeros(5, 24, dtype=torch.bfloat16)
    assert is_copied_by_tiles(matrix) and is_copied_by_tiles(matrix[1:, 8:])
    assert not is_copied_by_tiles(matrix[:, 1:])
    assert not is_copied_by_tiles(torch.zeros(5, 12, dtype=torch.bfloat16))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("rows", [72, 104, 128])
@pytest.mark.parametrize(("features", "size"), [(14336, 4096), (3072, 1024), (9728, 2560)])
def test_whole_models_shapes(features, size, rows, lane):
    x, weight = random(lane, rows, size), random(lane, 2 * features, size, scale=size**-0.5)
    assert_close(gated_linear(x, weight), naive(x, weight))


@pytest.mark.parametrize("lane", [GPU])
def test_a_row_of_launches_in_a_graph(lane):
    """Each takes its place while the one before still computes what it will read."""
    weights = [random(lane, 3072, 1536, scale=1536**-0.5) for _ in range(4)] * 3
    x, gain = random(lane, 128, 1536), torch.ones(1536, device=lane.device, dtype=torch.bfloat16)

    def chain():
        y = x
        for weight in weights:
            y = rms_norm(gated_linear(y, weight), gain, 1e-5)  # without it the values square with each product
        return y

    want = launched_and_replayed(chain)
    assert torch.isfinite(want).all() and want.any()
