from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kernels import mxfp4_product, register_product
from kernels.experts_down import experts_down_triton
from kernels.experts_gate_up import Clamp, experts_gate_up_triton
from kernels.grouped_product import MXFP4, GroupedConfig, grouped_config, usual_tile
from kernels.mxfp4 import dequantize_mxfp4, pack_scales
from tests.kernels import warp_emulator
from tests.kernels.expert_case import expert_case, products, rows
from tests.kernels.lanes import GPU, INTERPRET
from tests.kernels.tolerances import assert_close

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="its text is made for Triton")
CLAMP = Clamp(limit=0.7, alpha=1.702)


def words(numbers: torch.Tensor) -> np.ndarray:
    return numbers.contiguous().numpy().view(np.uint32)


def pairs_of(x: torch.Tensor) -> list[np.ndarray]:
    """Of eight rows, low halves' even and odd elements, and high ones', of each thread's group."""
    x_words, place = words(x.view(torch.int16)), np.arange(16) // 4 * 16 + np.arange(16) % 4
    assembly = register_product._pairs_assembly(False)
    return [
        each
        for first in (0, 8)
        for each in warp_emulator.run(assembly, [x_words[:, place + first], x_words[:, place + first + 4]], 2)
    ]


@needs_triton
def test_a_warp_multiplies_groups_as_they_lie():
    numbers = torch.randint(0, 256, (16, 64), dtype=torch.uint8)
    numbers[0, :16] = torch.arange(16, dtype=torch.uint8) * 17  # each number, in both halves
    scales = torch.randint(80, 160, (16, 4), dtype=torch.uint8)
    scales[:2, 0] = torch.tensor([66, 192])
    factors = ((scales.int() + 62) * 0x00800080).repeat_interleave(4, 1).numpy().view(np.uint32)
    x, all_words = torch.randn(8, 128).bfloat16(), words(numbers)
    inputs = [all_words[:8], all_words[8:], factors[:8], factors[8:]]
    made = warp_emulator.run(mxfp4_product._numbers_assembly(), inputs, 8)
    nothing = np.zeros((8, 16), np.uint32)
    (got,) = warp_emulator.run(mxfp4_product._product_assembly(), [*made, *pairs_of(x), nothing], 1)
    fragments = got.view(np.float32).reshape(1, 8, 4, 2, 2).transpose(0, 3, 1, 2, 4).reshape(16, 8)
    want = dequantize_mxfp4(numbers, scales, torch.float64) @ x.double().T
    torch.testing.assert_close(torch.tensor(fragments).double() * 2.0**64, want, rtol=1e-5, atol=1e-3)


def config_of(block_m, warps=4, warp_tiles=2, k_warps=1, turn=1):
    return GroupedConfig(block_m, 16 * warp_tiles * warps // k_warps, 128 * turn, warps, 1, warp_tiles, k_warps)


CONFIGS = {
    "8": config_of(8),
    "8, turns of two": config_of(8, turn=2),
    "8, one tile": config_of(8, warp_tiles=1),
    "8, warps share rows": config_of(8, k_warps=4, turn=2),
    "8, some do": config_of(8, warps=8, warp_tiles=1, k_warps=2),
    "16": config_of(16),
    "16, warps share rows": config_of(16, k_warps=2),
    "32": config_of(32),
    "32, one tile": config_of(32, warps=2, warp_tiles=1, k_warps=2),
}


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize(("num_tokens", "features", "size"), [(0, 16, 128), (1, 17, 96), (90, 200, 2880)])
def test_gates_and_ups(num_tokens, features, size, is_interleaved, config, lane):
    case = expert_case(lane, num_tokens, 2 * features, size, config, has_bias=True, form=MXFP4)
    x = rows(lane, num_tokens, size)
    got = experts_gate_up_triton(x, case.weight, case.blocks, config, is_interleaved=is_interleaved, clamp=CLAMP)
    product = products(case, x.repeat_interleave(case.blocks.top_k, 0))
    gate, up = (product[:, ::2], product[:, 1::2]) if is_interleaved else product.chunk(2, dim=-1)
    gate, up = gate.clamp(max=CLAMP.limit), up.clamp(-CLAMP.limit, CLAMP.limit)
    assert_close(got, (up + 1) * gate * torch.sigmoid(gate * CLAMP.alpha))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(("num_tokens", "features", "size"), [(0, 16, 128), (1, 17, 96), (90, 200, 2880)])
def test_downs(num_tokens, features, size, config, lane):
    case = expert_case(lane, num_tokens, features, size, config, has_bias=True, form=MXFP4)
    # Pairs are rounded before they are summed: of large ones that cancel out, little would be left.
    x, routing = 0.1 * rows(lane, 2 * num_tokens, size), lane.put(torch.rand(num_tokens, 2))
    got = experts_down_triton(x, case.weight, case.blocks, routing, config)
    weighted = products(case, x) * routing.flatten()[:, None].double()
    assert_close(got, weighted.unflatten(0, routing.shape).sum(1))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("block_m", [8, 16, 32])
def test_a_row_does_not_depend_on_the_others_nor_on_cells_that_nobody_has(block_m, lane):
    config = config_of(block_m, k_warps=2)
    case, packed = expert_case(lane, 30, 2 * 48, 2880, config, form=MXFP4), rows(lane, 30, 2880 + 64)
    packed[:, 2880:] = float("nan")
    together = experts_gate_up_triton(packed[:, :2880], case.weight, case.blocks, config)
    assert F.silu(together).isfinite().all()
    packed[1:] = float("nan")
    assert torch.equal(experts_gate_up_triton(packed[:, :2880], case.weight, case.blocks, config)[:2], together[:2])


@pytest.mark.parametrize("lane", [GPU])
def test_every_scale_that_weights_have(lane):
    """One number and one element of x each: exact."""
    scales = torch.arange(66, 193, dtype=torch.uint8)
    numbers = torch.zeros(1, len(scales), 64, dtype=torch.uint8)
    numbers[0, :, 17], numbers[0, :, 50] = 0x0E, 0x10  # -4 and, in the high half, 0.5
    case = expert_case(lane, 1, len(scales), 128, config_of(8), num_experts=2, top_k=1, form=MXFP4)
    weight = case.weight._replace(
        values=lane.put(numbers.expand(2, -1, -1).contiguous()),
        scales=lane.put(pack_scales(scales[None, :, None].expand(2, -1, 4))),
    )
    for place, value in ((33, -4.0), (114, 0.5)):
        x = torch.zeros(1, 128, device=lane.device, dtype=torch.bfloat16)
        x[0, place] = 1
        got = experts_down_triton(x, weight, case.blocks, torch.ones(1, 1, device=lane.device), config_of(8))
        assert torch.equal(got[0].double().cpu(), value * 2.0 ** (scales.double() - 127))


@pytest.mark.some(3)
@pytest.mark.parametrize("lane", [INTERPRET])
@pytest.mark.parametrize(("num_tokens", "stages"), [(1, 1), (9, 1), (40, 1), (1, 2), (9, 2), (40, 2)])
def test_what_the_table_chooses_by_emulated_warps(num_tokens, stages, lane, monkeypatch):
    """Of gpt-oss's form, where K ends within a chunk."""
    warp_emulator.in_the_interpreter(monkeypatch)
    config = grouped_config(num_tokens * 2, 6, MXFP4)
    config = replace(usual_tile(config.block_m) if config.by_units else config, num_stages=stages)
    assert config.warp_tiles
    case = expert_case(lane, num_tokens, 2 * 20, 352, config, has_bias=True, form=MXFP4)
    case = replace(case, weight=case.weight._replace(bias=None), bias=torch.zeros_like(case.bias))
    x, routing = torch.randn(num_tokens, 352).bfloat16(), torch.rand(num_tokens, 2)
    product = products(case, x.repeat_interleave(2, 0))
    gate, up = product[:, ::2].clamp(max=CLAMP.limit), product[:, 1::2].clamp(-CLAMP.limit, CLAMP.limit)
    got = experts_gate_up_triton(x, case.weight, case.blocks, config, is_interleaved=True, clamp=CLAMP)
    assert_close(got, (up + 1) * gate * torch.sigmoid(gate * CLAMP.alpha))
    x = 0.1 * torch.randn(2 * num_tokens, 352).bfloat16()
    weighted = products(case, x) * routing.flatten()[:, None].double()
    got = experts_down_triton(x, case.weight, case.blocks, routing, config)
    assert_close(got, weighted.unflatten(0, routing.shape).sum(1))
