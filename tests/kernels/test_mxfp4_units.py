from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
import torch

from kernels import mxfp4_units as module
from kernels.experts_down import experts_down_triton
from kernels.experts_gate_up import Clamp, experts_gate_up_triton
from kernels.grouped_product import MXFP4, GroupedConfig, grouped_config
from kernels.mxfp4 import dequantize_mxfp4, pack_scales
from kernels.mxfp4_units import mxfp4_by_units, takes
from tests.examples import spread
from tests.kernels import warp_emulator
from tests.kernels.expert_case import expert_case, products, rows
from tests.kernels.lanes import GPU, Lane
from tests.kernels.tolerances import assert_close

if importlib.util.find_spec("triton") is not None:
    from tests.kernels.sm90 import CUOBJDUMP, Launch, LaunchRecorder, compile_for_sm90

CLAMP = Clamp(limit=0.7, alpha=1.702)


def config_of(block_m, block_n=64, warps=4, stages=3):
    return GroupedConfig(block_m, block_n, 128, warps, stages, by_units=True)


CONFIGS = {
    "16": config_of(16),
    "16, many stages": config_of(16, stages=6),
    "32": config_of(32),
    "32, two tiles a warp": config_of(32, 128),
    "16, two tiles a warp": config_of(16, 128),
    "64, two tiles a warp": config_of(64, 128),
    "64, eight warps": config_of(64, 128, 8),
}


def in_order(first, last):
    both = torch.stack((first.view(16, 2, 2, 4), last.view(16, 2, 2, 4)), -1)
    return both.permute(0, 1, 4, 3, 2)


def test_words_become_the_numbers_of_two_groups():
    """In the order that the kernel's reshaping and permutation make of what the assembly puts out."""
    numbers = torch.randint(0, 256, (16, 32), dtype=torch.uint8)
    numbers[0, :16] = torch.arange(16, dtype=torch.uint8) * 17  # each number, in both halves
    scales = torch.randint(118, 124, (16, 2), dtype=torch.uint8)
    scales[:2, 0] = torch.tensor([66, 192])
    words = numbers.numpy().view(np.uint16).reshape(16, 2, 2, 4)
    factors = ((scales.int() + 62) * 0x00800080).repeat_interleave(4, 1).numpy()
    inputs = [words[:, :, 0].reshape(16, 8), words[:, :, 1].reshape(16, 8), factors, factors]
    made = warp_emulator.as_told(warp_emulator.run_each(module._numbers_assembly(), inputs, 4))
    both = torch.stack((in_order(*made[:2]), in_order(*made[2:])), -1).permute(0, 1, 5, 2, 3, 4).reshape(16, 64)
    assert torch.equal(both * 2.0**64, dequantize_mxfp4(numbers, scales, torch.float64))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("clamp", [None, CLAMP])
@pytest.mark.parametrize(("num_tokens", "features", "size"), [(0, 16, 128), (1, 17, 96), (90, 200, 2880)])
def test_gates_and_ups(num_tokens, features, size, clamp, config, lane):
    case = expert_case(lane, num_tokens, 2 * features, size, config, has_bias=True, form=MXFP4)
    x = rows(lane, num_tokens, size)
    assert takes(x, case.weight)
    got = experts_gate_up_triton(x, case.weight, case.blocks, config, is_interleaved=True, clamp=clamp)
    product = products(case, x.repeat_interleave(case.blocks.top_k, 0))
    gate, up = product[:, ::2], product[:, 1::2]
    if clamp is None:
        assert_close(got, gate * gate.sigmoid() * up)
    else:
        gate, up = gate.clamp(max=CLAMP.limit), up.clamp(-CLAMP.limit, CLAMP.limit)
        assert_close(got, (up + 1) * gate * torch.sigmoid(gate * CLAMP.alpha))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_tokens", "features", "size"), [(0, 16, 128), (1, 17, 96), (90, 200, 2880)])
def test_downs(num_tokens, features, size, has_bias, config, lane):
    case = expert_case(lane, num_tokens, features, size, config, has_bias=has_bias, form=MXFP4)
    # Pairs are rounded before they are summed: of large ones that cancel out, little would be left.
    x, routing = 0.1 * rows(lane, 2 * num_tokens, size), lane.put(torch.rand(num_tokens, 2))
    got = experts_down_triton(x, case.weight, case.blocks, routing, config)
    weighted = products(case, x) * routing.flatten()[:, None].double()
    assert_close(got, weighted.unflatten(0, routing.shape).sum(1))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("num_tokens", [13, 24, 30])
def test_what_the_table_chooses(num_tokens, lane):
    config = grouped_config(2 * num_tokens, 6, MXFP4)
    assert config.by_units
    case = expert_case(lane, num_tokens, 2 * 200, 2880, config, has_bias=True, form=MXFP4)
    x = rows(lane, num_tokens, 2880)
    product = products(case, x.repeat_interleave(2, 0))
    gate, up = product[:, ::2], product[:, 1::2]
    got = experts_gate_up_triton(x, case.weight, case.blocks, config, is_interleaved=True)
    assert_close(got, gate * gate.sigmoid() * up)


@pytest.mark.parametrize("lane", [GPU])
def test_a_row_does_not_depend_on_the_others_nor_on_cells_that_nobody_has(lane):
    config = config_of(32)
    case, packed = expert_case(lane, 30, 2 * 48, 2880, config, form=MXFP4), rows(lane, 30, 2880 + 64)
    packed[:, 2880:] = float("nan")
    together = experts_gate_up_triton(packed[:, :2880], case.weight, case.blocks, config, is_interleaved=True)
    assert together.isfinite().all()
    packed[1:] = float("nan")
    alone = experts_gate_up_triton(packed[:, :2880], case.weight, case.blocks, config, is_interleaved=True)
    assert torch.equal(alone[:2], together[:2])


@pytest.mark.parametrize("lane", [GPU])
def test_every_scale_that_weights_have(lane):
    """One number and one element of x each: exact."""
    scales = torch.arange(66, 193, dtype=torch.uint8)
    numbers = torch.zeros(1, len(scales), 64, dtype=torch.uint8)
    numbers[0, :, 17], numbers[0, :, 50] = 0x0E, 0x10  # -4 and, in the high half, 0.5
    case = expert_case(lane, 1, len(scales), 128, config_of(16), num_experts=2, top_k=1, form=MXFP4)
    weight = case.weight._replace(
        values=lane.put(numbers.expand(2, -1, -1).contiguous()),
        scales=lane.put(pack_scales(scales[None, :, None].expand(2, -1, 4))),
    )
    for place, value in ((33, -4.0), (114, 0.5)):
        x = torch.zeros(1, 128, device=lane.device, dtype=torch.bfloat16)
        x[0, place] = 1
        got = experts_down_triton(x, weight, case.blocks, torch.ones(1, 1, device=lane.device), config_of(16))
        assert torch.equal(got[0].double().cpu(), value * 2.0 ** (scales.double() - 127))


@pytest.mark.parametrize("lane", [GPU])
def test_gates_that_come_before_all_ups_go_the_usual_way(lane):
    config = config_of(32)
    case = expert_case(lane, 9, 2 * 48, 256, config, form=MXFP4)
    x = rows(lane, 9, 256)
    got = experts_gate_up_triton(x, case.weight, case.blocks, config)
    gate, up = products(case, x.repeat_interleave(2, 0)).chunk(2, dim=-1)
    assert_close(got, gate * gate.sigmoid() * up)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets, and compiles nothing")
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("config", spread(list(CONFIGS.values()), 2))
def test_numbers_are_made_while_the_units_multiply(config, is_gated, monkeypatch, tmp_path):
    """As tests/kernels/test_int4_linear.py says; of gpt-oss's form, where K ends within a chunk."""
    if not CUOBJDUMP.exists():
        pytest.skip("this Triton comes without NVIDIA's tools")
    recorder = LaunchRecorder(module._mxfp4_units_kernel)
    monkeypatch.setattr(module, "_mxfp4_units_kernel", recorder)
    case = expert_case(Lane("reference"), 9, 96, 2880, config, num_experts=3, has_bias=True, form=MXFP4)
    x, out, routing = torch.zeros(18, 2880).bfloat16(), torch.empty(18, 96).bfloat16(), torch.zeros(9, 2)
    clamp = CLAMP if is_gated else None
    mxfp4_by_units(x, case.weight, case.blocks, config, out, is_gated=is_gated, clamp=clamp, routing=routing)
    (launch,) = recorder.launches
    options = {"enable_fp_fusion": True, **launch.options, "PDL": True}
    compiled = compile_for_sm90(Launch(launch.kernel, launch.grid, launch.args, options), tmp_path)
    assert "cp.async.bulk.tensor" in compiled.ptx and "cp.async.cg" in compiled.ptx
    assert compiled.spills_in_loops == 0 and compiled.waits_for_units == 3
