from __future__ import annotations

import pytest
import torch

from kernels.experts_down import experts_down, experts_down_triton
from kernels.grouped_product import FP8, INT4, MXFP4, PLAIN
from tests.kernels.expert_case import SMALL_TILES, WIDE_TILES, expert_case, products, rows
from tests.kernels.lanes import LANES
from tests.kernels.tolerances import assert_close


def naive(case, x, routing):
    weighted = products(case, x) * routing.flatten()[:, None].double()
    return weighted.unflatten(0, routing.shape).sum(1)


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("config", [SMALL_TILES, WIDE_TILES], ids=["weight left", "weight right"])
@pytest.mark.parametrize("form", ["plain", "bias", "fp8", "mxfp4"])
@pytest.mark.parametrize(("num_tokens", "features", "size"), [(0, 16, 32), (1, 17, 64), (40, 70, 96)])
def test_follows_the_formula(num_tokens, features, size, form, config, lane):
    of_weight = {"fp8": FP8, "mxfp4": MXFP4}.get(form, PLAIN)
    case = expert_case(lane, num_tokens, features, size, config, has_bias=form == "bias", form=of_weight)
    x, routing = rows(lane, 2 * num_tokens, size), lane.put(torch.rand(num_tokens, 2))
    got = lane(experts_down, experts_down_triton)(x, case.weight, case.blocks, routing, config)
    assert_close(got, naive(case, x, routing))


QUANTIZED = {
    "fp8 in blocks": (FP8, 3, False),
    "int4 by channel": (INT4, 1, False),
    "int4 in groups": (INT4, 3, False),
    "int4 with zeros": (INT4, 3, True),
    "int4 of channels with zeros": (INT4, 1, True),
}


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("config", [SMALL_TILES, WIDE_TILES], ids=["weight left", "weight right"])
@pytest.mark.parametrize(("form", "num_groups", "has_zeros"), QUANTIZED.values(), ids=QUANTIZED)
@pytest.mark.parametrize(("num_tokens", "features", "size"), [(21, 70, 96), (3, 33, 384)])
def test_groups_of_inputs_have_scales_of_their_own(
    num_tokens, features, size, form, num_groups, has_zeros, config, lane
):
    case = expert_case(
        lane, num_tokens, features, size, config, form=form, num_groups=num_groups, has_zeros=has_zeros
    )  # fmt: skip
    x, routing = rows(lane, 2 * num_tokens, size), lane.put(torch.rand(num_tokens, 2))
    got = lane(experts_down, experts_down_triton)(x, case.weight, case.blocks, routing, config)
    assert_close(got, naive(case, x, routing))


@pytest.mark.usefixtures("rows_alone")
@pytest.mark.parametrize("lane", LANES[1:])
def test_a_row_does_not_depend_on_the_others(lane):
    case, x, routing = expert_case(lane, 30, 48, 64, SMALL_TILES), rows(lane, 60, 64), lane.put(torch.rand(30, 2))
    op = lane(experts_down, experts_down_triton)
    together = op(x, case.weight, case.blocks, routing, SMALL_TILES)
    x[2:] = float("nan")
    assert torch.equal(op(x, case.weight, case.blocks, routing, SMALL_TILES)[:1], together[:1])
