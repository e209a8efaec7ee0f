from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.experts_gate_up import Clamp, experts_gate_up, experts_gate_up_triton
from kernels.grouped_product import FP8, INT4, MXFP4, PLAIN, grouped_config
from tests.kernels.expert_case import SMALL_TILES, WIDE_TILES, expert_case, products, rows
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import assert_close

FORMS = {"plain": PLAIN, "fp8": FP8, "mxfp4": MXFP4}
CLAMP = Clamp(limit=0.7, alpha=1.702)


def naive(case, x, is_interleaved=False, clamp=None):
    product = products(case, x.repeat_interleave(case.blocks.top_k, 0))
    gate, up = (product[:, ::2], product[:, 1::2]) if is_interleaved else product.chunk(2, dim=-1)
    if clamp is None:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
    return (up + 1) * gate * torch.sigmoid(gate * clamp.alpha)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("config", [SMALL_TILES, WIDE_TILES], ids=["weight left", "weight right"])
@pytest.mark.parametrize(("num_tokens", "features", "size"), [(0, 16, 32), (1, 17, 40), (90, 48, 96)])
def test_follows_the_formula(num_tokens, features, size, config, lane):
    case, x = expert_case(lane, num_tokens, 2 * features, size, config), rows(lane, num_tokens, size)
    got = lane(experts_gate_up, experts_gate_up_triton)(x, case.weight, case.blocks, config)
    assert_close(got, naive(case, x))


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_interleaved_clamped_with_biases_as_gpt_oss_has_them(form, lane):
    case = expert_case(lane, 21, 2 * 20, 96, SMALL_TILES, has_bias=True, form=form)
    x = rows(lane, 21, 96)
    op = lane(experts_gate_up, experts_gate_up_triton)
    got = op(x, case.weight, case.blocks, SMALL_TILES, is_interleaved=True, clamp=CLAMP)
    assert_close(got, naive(case, x, is_interleaved=True, clamp=CLAMP))


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("form", [FP8, INT4], ids=["fp8", "int4"])
def test_gates_and_ups_of_quantized_experts_in_groups(form, lane):
    case = expert_case(lane, 21, 2 * 20, 192, SMALL_TILES, form=form, num_groups=3, has_zeros=form == INT4)
    x = rows(lane, 21, 192)
    got = lane(experts_gate_up, experts_gate_up_triton)(x, case.weight, case.blocks, SMALL_TILES)
    assert_close(got, naive(case, x))


@pytest.mark.parametrize("lane", LANES)
def test_rows_may_be_strided_and_no_other_cell_is_read(lane):
    case = expert_case(lane, 5, 2 * 16, 64, SMALL_TILES)
    packed = rows(lane, 5, 100)
    packed[:, 64:] = float("nan")
    x = packed[:, :64]
    assert_close(
        lane(experts_gate_up, experts_gate_up_triton)(x, case.weight, case.blocks, SMALL_TILES), naive(case, x)
    )


@pytest.mark.usefixtures("rows_alone")
@pytest.mark.parametrize("lane", LANES[1:])
def test_a_row_does_not_depend_on_the_others(lane):
    case, x = expert_case(lane, 30, 2 * 16, 64, SMALL_TILES), rows(lane, 30, 64)
    op = lane(experts_gate_up, experts_gate_up_triton)
    together = op(x, case.weight, case.blocks, SMALL_TILES)
    others = x.clone()
    others[1:] = float("nan")
    assert torch.equal(op(others, case.weight, case.blocks, SMALL_TILES)[:2], together[:2])


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("num_tokens", [1, 64, 2048])
def test_whole_models_shapes(num_tokens, form, lane):
    config = grouped_config(num_tokens * 4, 32, form)
    case = expert_case(lane, num_tokens, 2 * 256, 2880, config, num_experts=32, top_k=4, form=form)
    x = rows(lane, num_tokens, 2880) * 0.1
    got = experts_gate_up(x, case.weight, case.blocks, config)
    want = naive(case, x)
    torch.testing.assert_close(got.double(), want, atol=2e-2, rtol=2e-2)
