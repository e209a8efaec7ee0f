from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from kernels.attention_config import PrefillConfig
from kernels.paged_attention_prefill import (
    paged_attention_prefill,
    paged_attention_prefill_reference,
    paged_attention_prefill_triton,
    prefill_batch,
)
from tests.kernels.attention_lanes import EXACT, FLOAT32, GPU_ONLY, ON_THE_GPU, VARIANTS, assert_close, put, variants
from tests.kernels.lanes import Lane
from tests.kernels.paged_case import forget_unseen, naive_attention, paged_case

LENGTHS = [
    ([1], [1]),
    ([17], [17]),
    ([123], [123]),
    ([1], [40]),
    ([16], [48]),
    ([5, 30, 2], [5, 30, 2]),
    ([5, 1, 20, 3], [60, 17, 20, 4]),
    ([4, 0, 3], [80, 0, 130]),
    ([70, 33], [70, 150]),
]
HEADS = [(4, 4), (4, 2), (6, 1)]


def row_starts(query_lens):
    return torch.tensor([0, *query_lens]).cumsum(0, dtype=torch.int32)


def run(lane, case, query, query_lens, scale, first_row=0, **options):
    """`query` and the returned tensor are on the CPU. first_row: of the first sequence."""
    case, query = put(case, lane), lane.put(query) if query.is_contiguous() else query
    out = torch.full(query.shape, float("nan"), dtype=query.dtype, device=lane.device)
    starts, longest = lane.put(row_starts(query_lens) + first_row), max(query_lens, default=0)
    batch = prefill_batch(case.block_table, starts, case.context_lens, longest, case.key_cache.shape[1])
    attend = lane(paged_attention_prefill, paged_attention_prefill_triton)
    attend(query, case.key_cache, case.value_cache, batch, scale, out, **options)
    return out.cpu()


def naive(case, query, query_lens, scale, sliding_window=None):
    rows, start = [], 0
    for keys, values, count in zip(case.keys, case.values, query_lens, strict=True):
        for i in range(count):
            stop = len(keys) - count + i + 1
            first = 0 if sliding_window is None else max(0, stop - sliding_window)
            rows.append(naive_attention(query[start + i], keys[first:stop], values[first:stop], scale))
        start += count
    return torch.stack(rows)


def in_most_lanes(shapes):
    """(shape, lane, dtype): every shape in torch and on the GPU, three of them in the slow interpreter."""
    for number, shape in enumerate(shapes):
        for variant in VARIANTS:
            if variant.values[0].name != "interpret" or number in (2, 6, 7):
                yield pytest.param(*shape, *variant.values, marks=variant.marks, id=f"{shape}-{variant.id}")


@pytest.mark.pairwise
@pytest.mark.parametrize(("query_lens", "context_lens", "lane", "dtype"), list(in_most_lanes(LENGTHS)))
@pytest.mark.parametrize("heads", HEADS)
def test_follows_the_formula(query_lens, context_lens, heads, lane, dtype):
    num_heads, num_kv_heads = heads
    case = paged_case(context_lens, 16, num_kv_heads, 20, dtype)
    query = torch.randn(sum(query_lens), num_heads, 20).to(dtype)
    assert_close(run(lane, case, query, query_lens, 0.3), naive(case, query, query_lens, 0.3))


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
@pytest.mark.parametrize("block_size", [1, 2, 24, 256])
def test_any_block_size(block_size, lane, dtype):
    case = paged_case([33, 70], block_size, 2, 8, dtype)
    query = torch.randn(33 + 9, 4, 8)
    assert_close(run(lane, case, query, [33, 9], 0.5), naive(case, query, [33, 9], 0.5))


@pytest.mark.each_once
@pytest.mark.parametrize(("lane", "dtype"), VARIANTS)
@pytest.mark.parametrize(
    ("head_dim", "heads"), [(64, (25, 5)), (80, (2, 2)), (96, (6, 2)), (128, (71, 1)), (256, (4, 2))]
)
def test_head_dims_and_groups(head_dim, heads, lane, dtype):
    case = paged_case([90], 16, heads[1], head_dim, dtype)
    query = torch.randn(20, heads[0], head_dim).to(dtype)
    assert_close(run(lane, case, query, [20], head_dim**-0.5), naive(case, query, [20], head_dim**-0.5))


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
@pytest.mark.parametrize("sliding_window", [1, 16, 100, 1000])
def test_sliding_window(sliding_window, lane, dtype):
    query_lens = [33, 60, 16]
    case = paged_case([33, 230, 17], 16, 2, 8, dtype)
    query = torch.randn(sum(query_lens), 4, 8)
    got = run(lane, case, query, query_lens, 0.5, sliding_window=sliding_window)
    assert_close(got, naive(case, query, query_lens, 0.5, sliding_window))


@pytest.mark.parametrize(("lane", "dtype"), VARIANTS)
@pytest.mark.parametrize("options", [{}, {"logit_softcap": 2.0}], ids=["plain", "capped"])
def test_what_lies_before_the_window_of_its_first_row_is_not_read(options, lane, dtype):
    query_lens = [33, 60, 16, 1]
    case = paged_case([33, 230, 217, 129], 16, 2, 64, dtype)
    query = torch.randn(sum(query_lens), 4, 64).to(dtype)
    forgotten = forget_unseen(case, query_lens, 40)
    want = run(lane, case, query, query_lens, 0.125, sliding_window=40, **options)
    assert_close(run(lane, forgotten, query, query_lens, 0.125, sliding_window=40, **options), want.double())


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
@pytest.mark.parametrize("sliding_window", [None, 40])
def test_soft_cap(sliding_window, lane, dtype):
    cap, scale, count, context_len = 2.0, 0.5, 30, 170
    case = paged_case([context_len], 16, 1, 8, dtype)
    query = torch.randn(count, 3, 8) * 5  # scores far beyond the cap
    got = run(lane, case, query, [count], scale, sliding_window=sliding_window, logit_softcap=cap)
    for i in range(count):
        stop = context_len - count + i + 1
        first = max(0, stop - sliding_window) if sliding_window else 0
        keys, values = (x[0][first:stop, 0].double() for x in (case.keys, case.values))
        scores = cap * torch.tanh(query[i].double() @ keys.T * scale / cap)
        assert_close(got[i], scores.softmax(-1) @ values)


@pytest.mark.parametrize(("lane", "dtype"), VARIANTS)
@pytest.mark.parametrize("sliding_window", [None, 40])
def test_sinks_take_their_share(sliding_window, lane, dtype):
    scale, count, context_len = 0.5, 30, 170
    case = paged_case([context_len], 16, 1, 8, dtype)
    query, sinks = torch.randn(count, 3, 8).to(dtype), torch.tensor([30.0, -30.0, 1.5]).to(dtype)
    got = run(lane, case, query, [count], scale, sliding_window=sliding_window, sinks=lane.put(sinks))
    for i in range(count):
        stop = context_len - count + i + 1
        first = max(0, stop - sliding_window) if sliding_window else 0
        keys, values = (x[0][first:stop, 0].double() for x in (case.keys, case.values))
        scores = query[i].double() @ keys.T * scale
        weights = torch.cat((scores, sinks.double()[:, None]), dim=1).softmax(-1)[:, :-1]
        assert_close(got[i], weights @ values)


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
def test_takes_the_queries_of_a_packed_projection(lane, dtype):
    case = paged_case([9, 40], 16, 2, 8, dtype)
    packed = torch.full((9 + 11, 8, 8), float("nan"))
    packed[:, :4] = torch.randn(20, 4, 8)
    assert_close(run(lane, case, lane.put(packed)[:, :4], [9, 11], 0.5), naive(case, packed[:, :4], [9, 11], 0.5))


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
def test_no_sequences(lane, dtype):
    case = paged_case([], 16, 2, 8, dtype)
    assert run(lane, case, torch.randn(0, 4, 8), [], 0.5).shape == (0, 4, 8)


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
@pytest.mark.parametrize("first_row", [0, 1, 17])
def test_rows_of_others_before_and_behind_are_left_alone(first_row, lane, dtype):
    case = paged_case([20, 5], 16, 2, 8, dtype)
    rows = slice(first_row, first_row + 23)
    query = torch.full((60, 4, 8), float("nan"))
    query[rows] = torch.randn(23, 4, 8)
    out = run(lane, case, query, [20, 3], 0.5, first_row)
    assert_close(out[rows], naive(case, query[rows], [20, 3], 0.5))
    assert out[:first_row].isnan().all()
    assert out[rows.stop :].isnan().all()


@pytest.mark.parametrize(("lane", "dtype"), EXACT)
def test_a_chunk_equals_its_part_of_the_whole(lane, dtype):
    case = paged_case([100], 16, 2, 8, dtype)
    query = torch.randn(100, 4, 8)
    whole = run(lane, case, query, [100], 0.5)
    assert_close(run(lane, case, query[63:].clone(), [37], 0.5), whole[63:])


@pytest.mark.parametrize(("lane", "dtype"), [*variants("interpret", FLOAT32), *ON_THE_GPU])
@pytest.mark.parametrize("tiles", [(16, 64), (64, 16)])
def test_tiles_of_other_shapes(tiles, lane, dtype):
    block_m, block_kv = tiles
    case = paged_case([130], 16, 1, 16, dtype)
    query = torch.randn(50, 3, 16).to(dtype)
    case_there, out = put(case, lane), lane.put(torch.full_like(query, float("nan")))
    batch = prefill_batch(case_there.block_table, lane.put(row_starts([50])), case_there.context_lens, 50, 16)
    caches = case_there.key_cache, case_there.value_cache
    config = PrefillConfig(block_m, block_kv, num_warps=4, num_stages=2)
    paged_attention_prefill_triton(lane.put(query), *caches, batch, 0.5, out, config=config)
    assert_close(out, naive(case, query, [50], 0.5))


@pytest.mark.parametrize(("lane", "dtype"), GPU_ONLY)
@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [
        ([3000], [3000]),
        ([512], [9000]),
        ([128] * 70, [128] * 70),
        ([1, 700, 2, 33, 1024] * 60, [900, 700, 4000, 33, 1500] * 60),
    ],
    ids=["whole", "chunk", "equal", "mixed"],
)
def test_large_batches(query_lens, context_lens, block_size, lane, dtype):
    """Against the reference in fp32."""
    num_seqs, width = len(query_lens), -(-max(context_lens) // block_size)
    num_blocks = 100_000 // block_size
    storage = torch.empty(num_blocks, 2, block_size, 8, 128, dtype=dtype, device="cuda").normal_()
    keys, values = storage[:, 0], storage[:, 1]
    # Sequences may share blocks: here nearly all do.
    table = torch.stack([torch.randperm(num_blocks, device="cuda")[:width] for _ in range(num_seqs)]).int()
    lens, starts = torch.tensor(context_lens, dtype=torch.int32).cuda(), row_starts(query_lens).cuda()
    batch = prefill_batch(table, starts, lens, max(query_lens), block_size)
    query = torch.randn(sum(query_lens), 32, 128, device="cuda").to(dtype)
    got, want = torch.full_like(query, float("nan")), torch.empty_like(query, dtype=FLOAT32)
    paged_attention_prefill(query, keys, values, batch, 128**-0.5, got)
    paged_attention_prefill_reference(query.float(), keys.float(), values.float(), batch, 128**-0.5, want)
    assert torch.isfinite(got).all()
    for start, stop in pairwise(row_starts(query_lens).tolist()):
        assert (got[start:stop].float() - want[start:stop]).norm() < 5e-3 * want[start:stop].norm()
    torch.testing.assert_close(got.float(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(("lane", "dtype"), GPU_ONLY)
def test_caches_of_more_than_2_to_the_31_elements(lane, dtype):
    block_size, num_kv_heads, head_dim = 16, 8, 128
    num_blocks = 2**31 // (2 * block_size * num_kv_heads * head_dim) + 100
    storage = torch.full((num_blocks, 2, block_size, num_kv_heads, head_dim), math.nan, dtype=dtype, device="cuda")
    storage[-40:].normal_()
    keys, values = storage[:, 0], storage[:, 1]
    query = torch.randn(100, 32, head_dim, device="cuda").to(dtype)
    table = torch.arange(num_blocks - 40, num_blocks, dtype=torch.int32, device="cuda")
    lens, starts = (torch.tensor(x, dtype=torch.int32, device="cuda") for x in ([640], [0, 100]))
    out, want = torch.full_like(query, math.nan), torch.empty_like(query, dtype=FLOAT32)
    paged_attention_prefill(query, keys, values, prefill_batch(table[None], starts, lens, 100, 16), 0.09, out)
    table = torch.arange(40, dtype=torch.int32, device="cuda")
    small = prefill_batch(table[None], starts, lens, 100, 16)
    paged_attention_prefill_reference(query.float(), keys[-40:].float(), values[-40:].float(), small, 0.09, want)
    assert_close(out, want)


@pytest.mark.parametrize(("lane", "dtype"), GPU_ONLY)
def test_serving_never_compiles_again(lane, dtype):
    """Whatever the numbers of sequences and tokens, and the odd offsets of the rows: a small and a large batch have
    been compiled before."""
    from kernels.paged_attention_prefill import _paged_attention_prefill_kernel as kernel

    def step(num_seqs, first, width):
        lens = torch.full((num_seqs + first,), 3, dtype=torch.int32, device="cuda")[first:]
        table = torch.zeros(num_seqs + first, width, dtype=torch.int32, device="cuda")[first:]
        query = torch.zeros(2 * num_seqs, 4, 32, dtype=dtype, device="cuda")
        storage = torch.zeros(4, 2, 16, 2, 32, dtype=dtype, device="cuda")
        batch = prefill_batch(table, row_starts([2] * num_seqs).cuda(), lens, 2, 16)
        paged_attention_prefill(query, storage[:, 0], storage[:, 1], batch, 1.0, torch.empty_like(query))

    def compiled():
        return sum(len(caches[0]) for caches in kernel.device_caches.values())

    step(3, 0, 4)
    step(5000, 0, 1)
    before = compiled()
    for num_seqs, first, width in [(1, 0, 1), (1, 3, 1), (16, 1, 16), (17, 2, 33), (256, 3, 128), (6000, 1, 2)]:
        step(num_seqs, first, width)
    assert compiled() == before


def test_the_reference_is_the_launchers_choice_on_a_cpu():
    case = paged_case([40], 16, 2, 8, FLOAT32)
    query, out = torch.randn(9, 4, 8), torch.empty(9, 4, 8)
    batch = prefill_batch(case.block_table, row_starts([9]), case.context_lens, 9, 16)
    paged_attention_prefill_reference(query, case.key_cache, case.value_cache, batch, 0.5, out)
    assert torch.equal(run(Lane("reference"), case, query, [9], 0.5), out)
