from __future__ import annotations

import pytest
import torch

from kernels.graph_capture import capture_graph
from kernels.lora_expand import lora_expand, lora_expand_triton
from kernels.lora_shrink import lora_shrink
from kernels.lora_tensors import LoraTables
from tests.kernels.lanes import GPU, LANES
from tests.kernels.lora_case import LoraCase, overwrite, token_slots, with_room
from tests.kernels.tolerances import assert_close

NAN, INF = float("nan"), float("inf")


def expanded(lane, shrunk, slots, tables, y):
    """A new y, on the CPU."""
    y = lane.put(y)
    lane(lora_expand, lora_expand_triton)(lane.put(shrunk), token_slots(slots, lane.device), tables, y)
    return y.cpu()


def dtype_of(lane):
    """Triton's interpreter cannot multiply bf16."""
    return torch.float16 if lane.name == "interpret" else torch.bfloat16


def three_adapters(out_features, dtype, max_rank=40):
    case = LoraCase(32, out_features, max_rank, dtype)
    for slot, ranks in ((1, (16, 0, max_rank)), (3, (5, 17, 1)), (6, (0, 0, 2))):
        case.add(slot, *ranks[: len(out_features)])
    return case


def random_shrunk(case, slots, dtype=torch.float32):
    """As lora_shrink makes it: anything where there is no adapter. [T, P, R]"""
    shrunk = torch.full((len(slots), len(case.out_features), case.max_rank), NAN, dtype=dtype)
    for token, slot in enumerate(slots):
        for number, part in enumerate(case.adapters.get(slot, [])):
            shrunk[token, number, : len(part.a)] = torch.randn(len(part.a))
    return shrunk


def random_slots(tokens):
    return torch.tensor([0, 1, 3, 6])[torch.randint(4, (tokens,))].tolist()


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("strewn", [True, False])
@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 5, 17, 300])
@pytest.mark.parametrize("out_features", [(123,), (17, 130), (1, 128, 200)])
def test_follows_the_formula_and_reads_nothing_else(out_features, tokens, rounded, strewn, lane):
    """Around each row lie NaN, and in the tables of the other slots and projections offsets beyond everything."""
    case, slots = three_adapters(out_features, dtype_of(lane)), random_slots(tokens)
    shrunk = random_shrunk(case, slots, case.dtype if rounded else torch.float32)
    y = torch.randn(tokens, sum(out_features)).to(case.dtype)
    got = expanded(lane, shrunk, slots, case.tables(9, strewn=strewn, device=lane.device), y)
    assert_close(got, case.expanded(shrunk, slots, y))


@pytest.mark.parametrize("lane", LANES)
def test_fp32_is_not_rounded_on_the_way(lane):
    case, slots = three_adapters((40, 8, 150), torch.float32), random_slots(20)
    shrunk, y = random_shrunk(case, slots), torch.randn(20, 198)
    got = expanded(lane, shrunk, slots, case.tables(7, device=lane.device), y)
    torch.testing.assert_close(got.double(), case.expanded(shrunk, slots, y), atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("tokens", [8, 260])
def test_what_has_no_adapter_keeps_its_bits(tokens, lane):
    """Tokens without one and parts without one, whatever is there; and what lies beside y."""
    case, slots = three_adapters((17, 30, 9), torch.float32), [0, 1, 3, 6] * (tokens // 4)
    packed = torch.randn(tokens, 80)
    packed[0, :3], packed[1, 17:20], packed[:, 56:] = (
        torch.tensor([-0.0, NAN, INF]),
        torch.tensor([-0.0, NAN, INF]),
        NAN,
    )
    y = lane.put(packed)
    given = lane.put(random_shrunk(case, slots)), token_slots(slots, lane.device), case.tables(7, device=lane.device)
    lane(lora_expand, lora_expand_triton)(*given, y[:, :56])
    changed = y.cpu().view(torch.int32) != packed.view(torch.int32)
    assert not changed[:, 56:].any() and not changed[::4].any()
    assert not changed[1::4, 17:47].any() and not changed[3::4, :47].any()
    assert changed[1::4, :17].all() and changed[2::4, :56].all() and changed[3::4, 47:56].all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("lane", LANES)
def test_a_neighbours_nan_goes_nowhere(lane):
    """Neither that of its adapter nor that of its own values."""
    case, slots = three_adapters((17, 30, 9), torch.float32), [1, 3, 6, 0] * 3
    shrunk, y = random_shrunk(case, slots), torch.randn(12, 56)
    clean = expanded(lane, shrunk, slots, case.tables(7, device=lane.device), y)
    case.adapters[3][0].b[2], case.adapters[3][1].b[7, 3] = NAN, INF
    shrunk[2, 2, :2], y[4, 5] = NAN, NAN
    got = expanded(lane, shrunk, slots, case.tables(7, device=lane.device), y)
    untouched = [0, 3, 6, 7, 8, 10, 11]
    assert torch.equal(got[untouched], clean[untouched])
    assert got[[1, 5, 9], 2].isnan().all() and got[2, 47:].isnan().all() and got[4, 5].isnan()


@pytest.mark.usefixtures("rows_alone")
@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize(("together", "others"), [(200, [1, 17, 40]), (400, [257, 300])])
def test_a_token_does_not_depend_on_the_others(together, others, lane):
    case = three_adapters((17, 130, 9), dtype_of(lane))
    slots = torch.tensor([*random_slots(together - 1), 3])
    shrunk, y = random_shrunk(case, slots.tolist()), torch.randn(together, 156).to(case.dtype)
    tables = case.tables(7, device=lane.device)
    want = expanded(lane, shrunk, slots.tolist(), tables, y)
    for tokens in others:
        kept = torch.cat([torch.randperm(together - 1)[: tokens - 1], torch.tensor([together - 1])])
        assert torch.equal(expanded(lane, shrunk[kept], slots[kept].tolist(), tables, y[kept]), want[kept])


@pytest.mark.parametrize("lane", LANES)
def test_as_many_adapters_as_tokens(lane):
    case, slots = LoraCase(8, (30,), 4), (1 + torch.randperm(40)).tolist()
    for slot in range(1, 41):
        case.add(slot, 1 + slot % 4)
    shrunk, y = random_shrunk(case, slots), torch.randn(40, 30)
    got = expanded(lane, shrunk, slots, case.tables(50, device=lane.device), y)
    assert_close(got, case.expanded(shrunk, slots, y))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("alignment", [1, 8])
@pytest.mark.parametrize("tokens", [1, 64, 256, 2000])
@pytest.mark.parametrize("out_features", [(4096, 1024, 1024), (4096,), (14336, 14336)])
def test_whole_models_shapes(out_features, tokens, alignment, lane):
    case = LoraCase(8, out_features, 64, torch.bfloat16)
    for slot in range(1, 17):
        case.add(slot, *[16, 64, 24][: len(out_features)])
    slots = torch.randint(17, (tokens,)).tolist()
    shrunk, y = random_shrunk(case, slots), torch.randn(tokens, sum(out_features)).bfloat16()
    tables = case.tables(17, strewn=alignment == 8, alignment=alignment, device=lane.device)
    assert_close(expanded(lane, shrunk, slots, tables, y), case.expanded(shrunk, slots, y))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("tokens", [20, 300])
def test_a_graph_of_both_holds_for_any_slots_and_adapters(tokens, lane):
    """The second starts while the first still computes what it will read."""
    case = LoraCase(512, (512,), 40, torch.bfloat16)
    for slot in (1, 3, 6):
        case.add(slot, 8 * slot - 7)
    tables, given = with_room(case.tables(7, device=lane.device)), token_slots([0] * tokens, lane.device, 6)
    x = lane.put(torch.randn(tokens, 512).bfloat16())

    def chain():
        y = x
        for _ in range(6):
            z = y * 0.5
            lora_expand(lora_shrink(y, given, tables), given, tables, z)
            y = z
        return y

    chain()
    graph, got = capture_graph(chain, torch.cuda.Stream())
    for rank in (1, 23, 40):
        overwrite(given, token_slots(random_slots(tokens), lane.device, 6))
        case.add(6, rank)
        overwrite(tables, case.tables(7, device=lane.device))
        want = chain()
        for _ in range(10):
            got.fill_(NAN)
            graph.replay()
            assert torch.equal(got, want)


@pytest.mark.parametrize("lane", [GPU])
def test_weights_beyond_int32(lane):
    pool = torch.zeros(2**31 + 4096, device=lane.device, dtype=torch.bfloat16)
    pool[-64:-32], pool[-32:] = 1, 2
    offsets = torch.tensor([[[0]], [[len(pool) - 64]]], device=lane.device)
    ranks = torch.ones(2, 1, dtype=torch.int32, device=lane.device)
    tables = LoraTables(pool, offsets, offsets + 32, ranks, ranks.float(), (32,))
    y = torch.full((3, 32), 5.0, device=lane.device, dtype=torch.bfloat16)
    given = token_slots([1, 0, 1], lane.device)
    lora_expand(lora_shrink(torch.ones_like(y), given, tables), given, tables, y)
    assert y.tolist() == [[69.0] * 32, [5.0] * 32, [69.0] * 32]
