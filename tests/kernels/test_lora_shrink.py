from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.graph_capture import capture_graph
from kernels.lora_expand import lora_expand
from kernels.lora_shrink import lora_shrink, lora_shrink_triton, shrink_config
from tests.kernels.lanes import GPU, LANES
from tests.kernels.lora_case import LoraCase, overwrite, token_slots, with_room
from tests.kernels.tolerances import assert_close

NAN, INF = float("nan"), float("inf")


def shrink(lane):
    """With zeros where the kernel leaves what is undefined as it is: where the reference has them."""

    def run(x, given, tables):
        return defined(lane(lora_shrink, lora_shrink_triton)(x, given, tables), given, tables)

    return run


def defined(shrunk, given, tables):
    ranks = tables.ranks.where(torch.arange(tables.num_slots, device=shrunk.device)[:, None] > 0, 0)
    is_defined = torch.arange(tables.max_rank, device=shrunk.device) < ranks[given.slots.long()][:, :, None]
    return shrunk.where(is_defined, 0.0)


def dtype_of(lane):
    """Triton's interpreter cannot multiply bf16."""
    return torch.float16 if lane.name == "interpret" else torch.bfloat16


def three_adapters(size, dtype, max_rank=40):
    case = LoraCase(size, (17, 8, 3), max_rank, dtype)
    case.add(1, 16, 0, max_rank)
    case.add(3, 5, 17, 1)
    case.add(6, 0, 0, 2)
    return case


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("strewn", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 5, 17, 300])
@pytest.mark.parametrize("size", [1, 123, 1100])
def test_follows_the_formula_and_reads_nothing_else(size, tokens, strewn, lane):
    """Around each row lie NaN, and in the tables of the other slots and projections offsets beyond everything."""
    case = three_adapters(size, dtype_of(lane))
    slots = torch.tensor([0, 1, 3, 6])[torch.randint(4, (tokens,))].tolist()
    x = torch.randn(tokens, size).to(case.dtype)
    tables = case.tables(9, strewn=strewn, device=lane.device)
    got = shrink(lane)(lane.put(x), token_slots(slots, lane.device), tables)
    assert got.dtype == case.dtype or lane.name == "reference"
    want = case.shrunk(x, slots)
    assert_close(got.cpu(), want)
    assert not got.cpu()[want == 0].any()


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("num_parts", [1, 2])
def test_a_projection_of_fewer_parts(num_parts, lane):
    case = LoraCase(64, (8,) * num_parts, 16)
    case.add(2, *range(3, 3 + num_parts))
    x, slots = torch.randn(300, 64), [2, 0] * 150
    for tokens in (6, 300):
        given = lane.put(x[:tokens]), token_slots(slots[:tokens], lane.device), case.tables(3, device=lane.device)
        assert_close(shrink(lane)(*given).cpu(), case.shrunk(x, slots[:tokens]))


@pytest.mark.parametrize("lane", LANES)
def test_fp32_is_not_rounded_on_the_way(lane):
    case = three_adapters(700, torch.float32)
    x, slots = torch.randn(20, 700), [3, 1] * 10
    got = shrink(lane)(lane.put(x), token_slots(slots, lane.device), case.tables(7, device=lane.device))
    torch.testing.assert_close(got.cpu().double(), case.shrunk(x, slots), atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("lane", LANES)
def test_rows_may_be_strided(lane):
    case = three_adapters(96, torch.float32)
    packed = torch.full((7, 200), NAN)
    packed[:5, :96] = torch.randn(5, 96)
    slots = [6, 1, 3, 0, 1]
    x = lane.put(packed)[:5, :96]
    got = shrink(lane)(x, token_slots(slots, lane.device), case.tables(7, device=lane.device))
    assert_close(got.cpu(), case.shrunk(x, slots))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("lane", LANES)
def test_a_neighbours_nan_goes_nowhere(lane):
    """Neither that of its adapter nor that of its own values; what is zero stays so beside one's own."""
    case = three_adapters(40, torch.float32)
    x, slots = torch.randn(12, 40), [1, 3, 6, 0] * 3
    clean = shrink(lane)(lane.put(x), token_slots(slots, lane.device), case.tables(7, device=lane.device)).cpu()
    case.adapters[3][0].a[2], case.adapters[3][1].a[7, 3] = NAN, INF
    x[2], x[6] = INF, NAN
    got = shrink(lane)(lane.put(x), token_slots(slots, lane.device), case.tables(7, device=lane.device)).cpu()
    untouched = [token for token, slot in enumerate(slots) if slot != 3 and token not in (2, 6)]
    assert torch.equal(got[untouched], clean[untouched])
    assert got[[1, 5, 9], 0, 2].isnan().all()
    assert not got[[2, 6], 2, 2:].any()


@pytest.mark.usefixtures("rows_alone")
@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize(("together", "others"), [(200, [1, 17, 40]), (400, [257, 300])])
def test_a_token_does_not_depend_on_the_others(together, others, lane):
    """Nor on the number of slots, by which programs share the work."""
    case = three_adapters(600, dtype_of(lane))
    x, tables = lane.put(torch.randn(together, 600).to(case.dtype)), case.tables(7, device=lane.device)
    slots = torch.tensor([0, 1, 3, 6])[torch.randint(4, (together,))]
    slots[-1] = 3
    want = shrink(lane)(x, token_slots(slots.tolist(), lane.device), tables)
    for tokens in others:
        kept = torch.cat([torch.randperm(together - 1)[: tokens - 1], torch.tensor([together - 1])])
        got = shrink(lane)(x[lane.put(kept)], token_slots(slots[kept].tolist(), lane.device), tables)
        assert torch.equal(got, want[lane.put(kept)])


@pytest.mark.parametrize("lane", LANES[1:])
@pytest.mark.parametrize("tokens", [9, 260])
def test_ranks_that_nobody_has_change_nothing(tokens, lane):
    """Of an adapter of rank 16 the same is computed whether 16 or 64 are served."""
    x, slots = torch.randn(tokens, 80), [1, 2, 0] * 87
    results = []
    for max_rank in (16, 64):
        torch.manual_seed(1)
        case = LoraCase(80, (4, 4), max_rank)
        case.add(1, 16, 16)
        case.add(2, 16, 7)
        tables = case.tables(3, device=lane.device)
        results.append(shrink(lane)(lane.put(x), token_slots(slots[:tokens], lane.device), tables))
    assert torch.equal(results[0], results[1][..., :16])
    assert not results[1][..., 16:].any()


@pytest.mark.parametrize("lane", LANES)
def test_as_many_adapters_as_tokens(lane):
    case = LoraCase(30, (5,), 4)
    for slot in range(1, 41):
        case.add(slot, 1 + slot % 4)
    x, slots = torch.randn(40, 30), (1 + torch.randperm(40)).tolist()
    got = shrink(lane)(lane.put(x), token_slots(slots, lane.device), case.tables(50, device=lane.device))
    assert_close(got.cpu(), case.shrunk(x, slots))


@pytest.mark.parametrize("lane", LANES[1:])
def test_without_arrivals_k_is_not_split(lane):
    case = three_adapters(2100, torch.float32)
    x, given = lane.put(torch.randn(12, 2100)), token_slots([1, 3, 0] * 4, lane.device)
    tables = case.tables(7, device=lane.device)
    assert shrink_config(12, 3).num_splits(2100) == 4
    whole = shrink(lane)(x, given, replace(tables, arrivals=None))
    torch.testing.assert_close(whole, shrink(lane)(x, given, tables), atol=3e-6, rtol=3e-6)
    assert not tables.arrivals.any()


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("alignment", [1, 8])
@pytest.mark.parametrize("tokens", [1, 64, 256, 2000])
@pytest.mark.parametrize(("size", "num_parts"), [(4096, 3), (4096, 2), (14336, 1)])
def test_whole_models_shapes(size, num_parts, tokens, alignment, lane):
    case = LoraCase(size, (8,) * num_parts, 64, torch.bfloat16)
    for slot in range(1, 17):
        case.add(slot, *[16, 64, 24][:num_parts])
    x = torch.randn(tokens, size).bfloat16()
    slots = torch.randint(17, (tokens,)).tolist()
    tables = case.tables(17, strewn=alignment == 8, alignment=alignment, device=lane.device)
    got = shrink(lane)(lane.put(x), token_slots(slots, lane.device), tables)
    assert_close(got.cpu(), case.shrunk(x, slots))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("tokens", [20, 300])
def test_a_graph_holds_for_any_slots_and_adapters(tokens, lane):
    case = three_adapters(512, torch.bfloat16)
    tables, given = with_room(case.tables(7, device=lane.device)), token_slots([0] * tokens, lane.device, 6)
    x = lane.put(torch.randn(tokens, 512).bfloat16())
    lora_shrink(x, given, tables)
    graph, got = capture_graph(lambda: lora_shrink(x, given, tables), torch.cuda.Stream())
    for rank in (1, 23, 40):
        slots = torch.tensor([0, 1, 3, 6])[torch.randint(4, (tokens,))].tolist()
        case.add(6, rank, 0, rank)
        overwrite(given, token_slots(slots, lane.device, 6))
        overwrite(tables, case.tables(7, device=lane.device))
        graph.replay()
        torch.cuda.synchronize()
        assert_close(defined(got, given, tables).cpu(), case.shrunk(x.cpu(), slots))


def test_in_one_order_many_tokens_are_cut_as_few_are():
    for size in (256, 1024, 4096, 14336):
        few, *many = (shrink_config(tokens, 3, ordered=True) for tokens in (1, 256, 257, 4096))
        assert all((each.num_splits(size), each.block_k) == (few.num_splits(size), few.block_k) for each in many)
    assert shrink_config(300, 3).num_splits(4096) < shrink_config(300, 3, ordered=True).num_splits(4096)


@pytest.mark.parametrize("lane", [GPU])
@torch.inference_mode()
def test_in_one_order_a_tokens_bits_do_not_depend_on_how_many_there_are(lane):
    """Nor those of what is added to its product."""
    case = LoraCase(4096, (1024, 512, 512), 40, torch.bfloat16)
    case.add(1, 16, 40, 8)
    case.add(2, 32, 0, 16)
    tables, slots = case.tables(3, device=lane.device), [1, 2, 0, 2] * 500
    x, product = (lane.put(torch.randn(2000, size).bfloat16()) for size in (4096, 2048))

    def added(tokens):
        count = len(tokens)
        given = token_slots([slots[token] for token in tokens], lane.device, num_adapters=2)
        shrunk, y = lora_shrink(x[tokens], given, tables, ordered=True), product[tokens]
        lora_expand(shrunk, given, tables, y)
        assert len(y) == count
        return y

    expected = torch.cat([added([token]) for token in range(12)])
    for count in (12, 17, 256, 257, 700, 2000):
        assert torch.equal(added(list(range(count)))[:12], expected), count
        assert torch.equal(added(list(reversed(range(count))))[-12:].flip(0), expected), count
