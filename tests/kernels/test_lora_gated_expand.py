from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.lora_gated_expand import lora_gated_expand, lora_gated_expand_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.lora_case import LoraCase, token_slots
from tests.kernels.tolerances import assert_close

NAN = float("nan")


def dtype_of(lane):
    """Triton's interpreter cannot multiply bf16; the reference rounds it four times."""
    return {"interpret": torch.float16, "gpu": torch.bfloat16}.get(lane.name, torch.float32)


def three_adapters(features, dtype):
    case = LoraCase(32, (features, features), 40, dtype)
    for slot, ranks in ((1, (16, 40)), (3, (0, 17)), (6, (5, 0))):
        case.add(slot, *ranks)
    return case


def random_shrunk(case, slots):
    """NaN where it is undefined. [T, 2, R]"""
    shrunk = torch.full((len(slots), 2, case.max_rank), NAN)
    for token, slot in enumerate(slots):
        for number, part in enumerate(case.adapters.get(slot, [])):
            shrunk[token, number, : len(part.a)] = torch.randn(len(part.a))
    return shrunk


def gated(case, shrunk, slots, y):
    """Exact."""
    gate, up = case.expanded(shrunk, slots, y).chunk(2, 1)
    return F.silu(gate) * up


def run(lane, shrunk, slots, tables, y):
    expand = lane(lora_gated_expand, lora_gated_expand_triton)
    return expand(lane.put(shrunk), token_slots(slots, lane.device), tables, lane.put(y)).cpu()


@pytest.mark.each_once
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("tokens", [0, 1, 5, 17, 300])
@pytest.mark.parametrize("features", [1, 123, 300])
def test_follows_the_formula_and_reads_nothing_else(features, tokens, lane):
    """Around each row lie NaN, and in the tables of the other slots and projections offsets beyond everything."""
    case, slots = three_adapters(features, dtype_of(lane)), torch.tensor([0, 1, 3, 6])[torch.randint(4, (tokens,))]
    shrunk, y = random_shrunk(case, slots.tolist()), torch.randn(tokens, 2 * features).to(case.dtype)
    got = run(lane, shrunk, slots.tolist(), case.tables(9, device=lane.device), y)
    assert_close(got, gated(case, shrunk, slots.tolist(), y))


@pytest.mark.parametrize("lane", LANES)
def test_fp32_is_not_rounded_on_the_way_and_y_stays(lane):
    case, slots = three_adapters(90, torch.float32), [0, 1, 3, 6] * 5
    shrunk, y = random_shrunk(case, slots), lane.put(torch.randn(20, 180))
    given = lane.put(shrunk), token_slots(slots, lane.device), case.tables(7, device=lane.device)
    kept = y.clone()
    got = lane(lora_gated_expand, lora_gated_expand_triton)(*given, y)
    torch.testing.assert_close(got.cpu().double(), gated(case, shrunk, slots, y), atol=3e-6, rtol=3e-6)
    assert torch.equal(y, kept)


@pytest.mark.usefixtures("rows_alone")
@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize(("together", "others"), [(200, [1, 17, 40]), (400, [257, 300])])
def test_a_token_does_not_depend_on_the_others(together, others, lane):
    case = three_adapters(130, dtype_of(lane))
    slots = torch.tensor([0, 1, 3, 6])[torch.randint(4, (together,))]
    shrunk, y = random_shrunk(case, slots.tolist()), torch.randn(together, 260).to(case.dtype)
    tables = case.tables(7, device=lane.device)
    want = run(lane, shrunk, slots.tolist(), tables, y)
    for tokens in others:
        kept = torch.randperm(together)[:tokens]
        assert torch.equal(run(lane, shrunk[kept], slots[kept].tolist(), tables, y[kept]), want[kept])


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("tokens", [1, 64, 256, 2000])
def test_a_whole_models_shape(tokens, lane):
    case = LoraCase(8, (14336, 14336), 64, torch.bfloat16)
    for slot in range(1, 17):
        case.add(slot, 16, 64)
    slots = torch.randint(17, (tokens,)).tolist()
    shrunk, y = random_shrunk(case, slots).bfloat16(), torch.randn(tokens, 28672).bfloat16()
    tables = case.tables(17, strewn=False, alignment=8, device=lane.device)
    assert_close(run(lane, shrunk, slots, tables, y), gated(case, shrunk, slots, y))
