from __future__ import annotations

import math

import pytest
import torch

from kernels.attention_config import DecodeConfig
from kernels.graph_capture import capture_graph
from kernels.paged_attention_decode import (
    decode_batch,
    paged_attention_decode,
    paged_attention_decode_reference,
    paged_attention_decode_triton,
)
from tests.kernels.attention_lanes import EXACT, FLOAT32, GPU_ONLY, ON_THE_GPU, VARIANTS, assert_close, put, variants
from tests.kernels.lanes import REFERENCE, Lane
from tests.kernels.paged_case import forget_unseen, naive_attention, paged_case

CONTEXT_LENS = [[1], [16], [17], [123], [1, 1], [15, 16, 17], [200, 3, 1, 64, 65], [48, 48, 48], [0], [5, 0, 70, 0]]
HEADS = [(4, 4), (4, 2), (6, 1)]


def run(lane, case, query, scale, **options):
    """`query` and the returned tensor are on the CPU. Rows of padding, which hold anything, come back as zeros."""
    case, query = put(case, lane), lane.put(query) if query.is_contiguous() else query
    out = torch.full(query.shape, float("nan"), dtype=query.dtype, device=lane.device)
    batch = decode_batch(case.block_table, case.context_lens, case.key_cache.shape[1])
    attend = lane(paged_attention_decode, paged_attention_decode_triton)
    attend(query, case.key_cache, case.value_cache, batch, scale, out, **options)
    assert not any(splits.arrivals.any() for splits in batch.splits.values())
    return out.masked_fill_((case.context_lens == 0)[:, None, None], 0).cpu()


def naive(case, query, scale):
    rows = [
        naive_attention(q, k, v, scale) if len(k) else torch.zeros_like(q).double()
        for q, k, v in zip(query, case.keys, case.values, strict=True)
    ]
    return torch.stack(rows)


def in_most_lanes(shapes):
    """(shape, lane, dtype): every shape in torch and on the GPU, two of them in the slow interpreter."""
    for number, shape in enumerate(shapes):
        for variant in VARIANTS:
            if variant.values[0].name != "interpret" or number in (3, 6):
                yield pytest.param(shape, *variant.values, marks=variant.marks, id=f"{shape}-{variant.id}")


@pytest.mark.pairwise
@pytest.mark.parametrize(("context_lens", "lane", "dtype"), list(in_most_lanes(CONTEXT_LENS)))
@pytest.mark.parametrize("heads", HEADS)
def test_follows_the_formula(context_lens, heads, lane, dtype):
    num_heads, num_kv_heads = heads
    case = paged_case(context_lens, 16, num_kv_heads, 20, dtype)
    query = torch.randn(len(context_lens), num_heads, 20).to(dtype)
    assert_close(run(lane, case, query, 0.3), naive(case, query, 0.3))


@pytest.mark.parametrize(("lane", "dtype"), variants("interpret", FLOAT32))
def test_padding_rows_in_the_interpreter(lane, dtype):
    case = paged_case([0, 5, 0, 17], 16, 2, 8, dtype)
    query = torch.randn(4, 4, 8)
    assert_close(run(lane, case, query, 0.3), naive(case, query, 0.3))


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
@pytest.mark.parametrize("block_size", [1, 2, 24, 256])
def test_any_block_size(block_size, lane, dtype):
    case = paged_case([1, 33, 300], block_size, 2, 8, dtype)
    query = torch.randn(3, 4, 8)
    assert_close(run(lane, case, query, 0.5), naive(case, query, 0.5))


@pytest.mark.each_once
@pytest.mark.parametrize(("lane", "dtype"), VARIANTS)
@pytest.mark.parametrize(
    ("head_dim", "heads"), [(64, (25, 5)), (80, (2, 2)), (96, (6, 2)), (128, (32, 1)), (256, (4, 2))]
)
def test_head_dims_and_groups(head_dim, heads, lane, dtype):
    case = paged_case([150], 16, heads[1], head_dim, dtype)
    query = torch.randn(1, heads[0], head_dim).to(dtype)
    assert_close(run(lane, case, query, head_dim**-0.5), naive(case, query, head_dim**-0.5))


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
@pytest.mark.parametrize("sliding_window", [1, 16, 100, 1000])
def test_sliding_window(sliding_window, lane, dtype):
    case = paged_case([1, 33, 230, 16], 16, 2, 8, dtype)
    query = torch.randn(4, 4, 8)
    got = run(lane, case, query, 0.5, sliding_window=sliding_window)
    want = [
        naive_attention(q, k[-sliding_window:], v[-sliding_window:], 0.5)
        for q, k, v in zip(query, case.keys, case.values, strict=True)
    ]
    assert_close(got, torch.stack(want))


@pytest.mark.parametrize(("lane", "dtype"), VARIANTS)
@pytest.mark.parametrize("options", [{}, {"logit_softcap": 2.0}], ids=["plain", "capped"])
def test_what_lies_before_the_window_is_not_read(options, lane, dtype):
    case = paged_case([230, 33, 16, 215, 208, 1], 16, 2, 64, dtype)
    query = torch.randn(6, 4, 64).to(dtype)
    forgotten = forget_unseen(case, [1] * 6, 40)
    want = run(lane, case, query, 0.125, sliding_window=40, **options)
    assert_close(run(lane, forgotten, query, 0.125, sliding_window=40, **options), want.double())


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
@pytest.mark.parametrize("sliding_window", [None, 40])
def test_soft_cap(sliding_window, lane, dtype):
    cap, scale = 2.0, 0.5
    case = paged_case([7, 230], 16, 1, 8, dtype)
    query = torch.randn(2, 3, 8) * 5  # scores far beyond the cap
    got = run(lane, case, query, scale, sliding_window=sliding_window, logit_softcap=cap)
    for row, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        keys, values = (x[-sliding_window:, 0].double() if sliding_window else x[:, 0].double() for x in (keys, values))
        scores = cap * torch.tanh(query[row].double() @ keys.T * scale / cap)
        assert_close(got[row], scores.softmax(-1) @ values)


@pytest.mark.parametrize(("lane", "dtype"), VARIANTS)
@pytest.mark.parametrize("sliding_window", [None, 40])
def test_sinks_take_their_share_once_however_a_sequence_is_split(sliding_window, lane, dtype):
    """One that decides, one that counts for nothing, and one between."""
    case, scale = paged_case([1, 7, 600], 16, 1, 8, dtype), 0.5
    query, sinks = torch.randn(3, 3, 8).to(dtype), torch.tensor([30.0, -30.0, 1.5]).to(dtype)
    got = run(lane, case, query, scale, sliding_window=sliding_window, sinks=lane.put(sinks))
    for row, (keys, values) in enumerate(zip(case.keys, case.values, strict=True)):
        keys, values = (x[-sliding_window:, 0].double() if sliding_window else x[:, 0].double() for x in (keys, values))
        scores = query[row].double() @ keys.T * scale
        weights = torch.cat((scores, sinks.double()[:, None]), dim=1).softmax(-1)[:, :-1]
        assert_close(got[row], weights @ values)


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
def test_takes_the_queries_of_a_packed_projection(lane, dtype):
    case = paged_case([9, 40], 16, 2, 8, dtype)
    packed = torch.full((2, 8, 8), float("nan"))
    packed[:, :4] = torch.randn(2, 4, 8)
    assert_close(run(lane, case, lane.put(packed)[:, :4], 0.5), naive(case, packed[:, :4], 0.5))


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
def test_no_sequences(lane, dtype):
    case = paged_case([], 16, 2, 8, dtype)
    assert run(lane, case, torch.randn(0, 4, 8), 0.5).shape == (0, 4, 8)


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
def test_afresh_follows_lengths_that_changed_at_their_place(lane, dtype):
    """And what a step has found out from its lengths serves all of its layers."""
    case, query = paged_case([33, 170], 16, 2, 8, dtype), torch.randn(2, 4, 8)
    there, attend = put(case, lane), lane(paged_attention_decode, paged_attention_decode_triton)
    lens = torch.tensor([170, 2], dtype=torch.int32).to(lane.device)
    batch = decode_batch(there.block_table.flip(0).contiguous(), lens, 16)
    for now in ([170, 33], [17, 32]):
        lens.copy_(torch.tensor(now, dtype=torch.int32))
        batch = batch.afresh()
        for _ in range(2):
            out = lane.put(torch.full_like(query, float("nan")))
            attend(lane.put(query), there.key_cache, there.value_cache, batch, 0.5, out)
            assert len(batch.splits) == (lane.name != "reference")
            keys, values = ([kept[1][: lens[0]], kept[0][: lens[1]]] for kept in (case.keys, case.values))
            want = [naive_attention(*row, 0.5) for row in zip(query, keys, values, strict=True)]
            assert_close(out, torch.stack(want))


def test_neighbours_do_not_matter():
    """Padding to the batch's longest never changes a row by more than rounding."""
    case = paged_case([50, 3, 90, 120], 16, 2, 8, torch.float32)
    query = torch.randn(4, 4, 8)
    together = run(Lane("reference"), case, query, 0.5)
    for row in range(4):
        alone = torch.full((1, 4, 8), float("nan"))
        batch = decode_batch(case.block_table[row : row + 1], case.context_lens[row : row + 1], 16)
        paged_attention_decode(query[row : row + 1], case.key_cache, case.value_cache, batch, 0.5, alone)
        assert_close(alone[0], together[row])


@pytest.mark.parametrize("lane", [REFERENCE])
def test_long_and_many(lane):
    """Beyond one group's bound on padded cells."""
    context_lens = [3000, 2900, 2800, 2000, 1999, 1500, 700]
    case = paged_case(context_lens, 128, 1, 4, torch.float32)
    query = torch.randn(len(context_lens), 2, 4)
    assert len(decode_batch(case.block_table, case.context_lens, 128).groups(None)) > 1
    assert_close(run(lane, case, query, 0.5), naive(case, query, 0.5))


@pytest.mark.parametrize(("lane", "dtype"), [*variants("interpret", FLOAT32), *ON_THE_GPU])
@pytest.mark.parametrize("programs_per_sm", [1, 64])
def test_few_and_many_splits(programs_per_sm, lane, dtype):
    """A long sequence among short ones is cut to pieces as small as one tile; the merge takes them in several goes."""
    case = paged_case([3, 500, 1, 64], 16, 1, 8, dtype)
    query = torch.randn(4, 20, 8).to(dtype)
    config = DecodeConfig(16, num_warps=4, num_stages=3, programs_per_sm=programs_per_sm, min_tiles=1)
    case_there, out = put(case, lane), lane.put(torch.full_like(query, float("nan")))
    batch = decode_batch(case_there.block_table, case_there.context_lens, 16)
    caches = case_there.key_cache, case_there.value_cache
    paged_attention_decode_triton(lane.put(query), *caches, batch, 0.5, out, config=config)
    assert_close(out, naive(case, query, 0.5))


@pytest.mark.parametrize(("lane", "dtype"), ON_THE_GPU)
def test_more_sequences_than_are_looked_at_in_one_go(lane, dtype):
    """For the interpreter, tests/kernels/test_split_kv.py looks at fewer of them in smaller goes."""
    context_lens = [(7 * s) % 5 for s in range(259)] + [200]
    case = paged_case(context_lens, 4, 1, 8, dtype)
    query = torch.randn(len(context_lens), 2, 8).to(dtype)
    assert_close(run(lane, case, query, 0.5), naive(case, query, 0.5))


def random_storage(num_blocks, block_size, num_kv_heads, head_dim, dtype):
    """Keys and values of one layer, on the GPU."""
    shape = (num_blocks, 2, block_size, num_kv_heads, head_dim)
    storage = torch.empty(shape, dtype=dtype, device="cuda").normal_()
    return storage[:, 0], storage[:, 1]


def random_table(context_lens, block_size, num_blocks):
    width = -(-max(context_lens) // block_size)
    ids = torch.randperm(num_blocks)[: len(context_lens) * width]
    return ids.view(-1, width).int().cuda()


@pytest.mark.parametrize(("lane", "dtype"), GPU_ONLY)
@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize(
    "context_lens",
    [[4097], [32768, 17], [1000] * 33, [20000, *([130] * 63)], list(range(0, 1024, 4))],
    ids=["one", "two", "equal", "skewed", "rising"],
)
def test_large_batches(context_lens, block_size, lane, dtype):
    """Against the reference in fp32. Rows of padding hold anything."""
    num_seqs, width = len(context_lens), -(-max(context_lens) // block_size)
    num_blocks = num_seqs * width
    keys, values = random_storage(num_blocks, block_size, 8, 128, dtype)
    query = torch.randn(num_seqs, 32, 128, device="cuda").to(dtype)
    lens = torch.tensor(context_lens, dtype=torch.int32, device="cuda")
    batch = decode_batch(random_table(context_lens, block_size, num_blocks), lens, block_size)
    got, want = torch.full_like(query, float("nan")), torch.empty_like(query, dtype=FLOAT32)
    paged_attention_decode(query, keys, values, batch, 128**-0.5, got)
    paged_attention_decode_reference(query.float(), keys.float(), values.float(), batch, 128**-0.5, want)
    got, want = got[lens > 0], want[lens > 0]
    assert torch.isfinite(got).all()
    assert (got.float() - want).norm() < 5e-3 * want.norm()
    torch.testing.assert_close(got.float(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("lane", "dtype"), GPU_ONLY)
def test_a_graph_follows_lengths_and_blocks_that_change(lane, dtype):
    """One capture serves every step: splits come from lengths read on the device."""
    block_size, num_seqs, longest = 16, 6, 4096
    num_blocks = num_seqs * longest // block_size
    keys, values = random_storage(num_blocks, block_size, 2, 64, dtype)
    query = torch.randn(num_seqs, 8, 64, device="cuda").to(dtype)
    table = torch.zeros(num_seqs, longest // block_size, dtype=torch.int32, device="cuda")
    lens = torch.zeros(num_seqs, dtype=torch.int32, device="cuda")
    batch, out = decode_batch(table, lens, block_size), torch.empty_like(query)
    paged_attention_decode(query, keys, values, batch, 0.125, out)

    def step():
        of_this_step = batch.afresh()
        for _ in range(3):  # as so many layers: the splits are listed once
            paged_attention_decode(query, keys, values, of_this_step, 0.125, out)

    graph, _ = capture_graph(step, torch.cuda.Stream())
    for context_lens in ([0, 0, 0, 0, 0, 0], [1, 2, 3, 0, 0, 0], [4096, 1, 64, 65, 3000, 0], [4096] * 6):
        lens.copy_(torch.tensor(context_lens, dtype=torch.int32))
        table.copy_(random_table([longest] * num_seqs, block_size, num_blocks))
        out.fill_(float("nan"))
        graph.replay()
        want = torch.empty_like(query, dtype=FLOAT32)
        fresh = decode_batch(table, lens, block_size)
        paged_attention_decode_reference(query.float(), keys.float(), values.float(), fresh, 0.125, want)
        assert_close(out[lens > 0], want[lens > 0])


@pytest.mark.parametrize(("lane", "dtype"), GPU_ONLY)
def test_caches_of_more_than_2_to_the_31_elements(lane, dtype):
    block_size, num_kv_heads, head_dim = 16, 8, 128
    num_blocks = 2**31 // (2 * block_size * num_kv_heads * head_dim) + 100
    storage = torch.full((num_blocks, 2, block_size, num_kv_heads, head_dim), math.nan, dtype=dtype, device="cuda")
    storage[-40:].normal_()
    keys, values = storage[:, 0], storage[:, 1]
    query = torch.randn(1, 32, head_dim, device="cuda").to(dtype)
    table = torch.arange(num_blocks - 40, num_blocks, dtype=torch.int32, device="cuda")
    lens = torch.tensor([640], dtype=torch.int32, device="cuda")
    out, want = torch.full_like(query, math.nan), torch.empty_like(query, dtype=FLOAT32)
    paged_attention_decode(query, keys, values, decode_batch(table[None], lens, block_size), 0.09, out)
    small = decode_batch(torch.arange(40, dtype=torch.int32, device="cuda")[None], lens, block_size)
    paged_attention_decode_reference(query.float(), keys[-40:].float(), values[-40:].float(), small, 0.09, want)
    assert_close(out, want)


@pytest.mark.parametrize(("lane", "dtype"), GPU_ONLY)
def test_serving_never_compiles_again(lane, dtype):
    """Whatever the batch size, the table's width, the offset of its first row: a batch of each tuned kind, and of each
    kind of search (up to 32, 256, 512, 1,024, more sequences), has been compiled before."""
    from kernels.paged_attention_decode import _paged_attention_decode_kernel as kernel

    def step(num_seqs, first, width):
        lens = torch.full((num_seqs + first,), 3, dtype=torch.int32, device="cuda")[first:]
        table = torch.zeros(num_seqs + first, width, dtype=torch.int32, device="cuda")[first:]
        query = torch.zeros(num_seqs, 4, 32, dtype=dtype, device="cuda")
        keys, values = random_storage(4, 16, 2, 32, dtype)
        batch = decode_batch(table, lens, 16)
        paged_attention_decode(query, keys, values, batch, 1.0, torch.empty_like(query))

    def compiled():
        return sum(len(caches[0]) for caches in kernel.device_caches.values())

    for num_seqs in (3, 17, 40, 260, 600, 1100):
        step(num_seqs, 0, 4)
    before = compiled()
    for num_seqs, first, width in [
        (1, 0, 1),
        (1, 3, 1),
        (16, 1, 16),
        (17, 2, 33),
        (256, 3, 128),
        (300, 1, 7),
        (511, 1, 2),
        (700, 3, 9),
        (1500, 3, 9),
    ]:
        step(num_seqs, first, width)
    assert compiled() == before
