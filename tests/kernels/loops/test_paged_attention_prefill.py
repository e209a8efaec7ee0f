from __future__ import annotations

import pytest
import torch

from kernels.paged_attention_prefill import prefill_batch
from tests.examples import spread
from tests.kernels.paged_case import forget_unseen, naive_attention, paged_case
from tests.kernels.tolerances import assert_close


def attend(loops, case, query, query_lens, window=None, first_row=0):
    starts = torch.tensor([0, *query_lens]).cumsum(0, dtype=torch.int32) + first_row
    batch = prefill_batch(case.block_table, starts, case.context_lens, max(query_lens), case.key_cache.shape[1])
    out = torch.full(query.shape, float("nan"), dtype=query.dtype)
    loops.paged_attention_prefill(
        query,
        case.key_cache,
        case.value_cache,
        batch.block_table,
        batch.rows,
        batch.query_starts,
        batch.context_lens,
        batch.max_query_len,
        0.2,
        out,
        window,
    )
    return out


def naive(case, query, query_lens, window=None):
    rows, start = [], 0
    for keys, values, count in zip(case.keys, case.values, query_lens, strict=True):
        for i in range(count):
            stop = len(keys) - count + i + 1
            first = 0 if window is None else max(0, stop - window)
            rows.append(naive_attention(query[start + i], keys[first:stop], values[first:stop], 0.2))
        start += count
    return torch.stack(rows)


@pytest.mark.parametrize("window", [None, 1, 16, 150])
@pytest.mark.parametrize("block_size", [1, 16, 24])
def test_follows_the_formula_across_tiles(loops, block_size, window):
    """Contexts around the tile of 128 cells, with and without a prefix; cells of others are NaN."""
    query_lens, lens = [1, 127, 0, 7, 40, 2], [1, 127, 5, 129, 300, 257]
    case = paged_case(lens, block_size, 2, 32, torch.bfloat16)
    query = torch.randn(sum(query_lens), 6, 32).bfloat16()
    assert_close(attend(loops, case, query, query_lens, window), naive(case, query, query_lens, window))


@pytest.mark.parametrize("window", [16, 150])
def test_what_lies_before_the_window_of_its_first_row_is_not_read(loops, window):
    query_lens, lens = [1, 127, 7, 40], [260, 127, 329, 300]
    case = paged_case(lens, 16, 2, 32, torch.bfloat16)
    query = torch.randn(sum(query_lens), 6, 32).bfloat16()
    case = forget_unseen(case, query_lens, window)
    assert_close(attend(loops, case, query, query_lens, window), naive(case, query, query_lens, window))


@pytest.mark.parametrize(
    ("head_dim", "heads"), spread([(128, (8, 1)), (256, (2, 2)), (96, (5, 1)), (64, (9, 3)), (32, (71, 1))], 3)
)
def test_head_dims_and_groups(loops, head_dim, heads):
    """Of odd groups too, whose rows end within a block of six. Each pair is compiled, which takes a second or two."""
    case = paged_case([140, 9], 16, heads[1], head_dim, torch.bfloat16)
    query = torch.randn(31 + 9, heads[0], head_dim).bfloat16()
    assert_close(attend(loops, case, query, [31, 9]), naive(case, query, [31, 9]))


@pytest.mark.parametrize("num_threads", [1, 16])
def test_a_chunk_gives_the_same_bits_as_the_whole(loops, num_threads):
    """Whatever share of it an item is."""
    case = paged_case([300], 16, 2, 64, torch.bfloat16)
    query = torch.randn(300, 6, 64).bfloat16()
    whole = attend(loops, case, query, [300])
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(attend(loops, case, query[217:], [83]), whole[217:])
    finally:
        torch.set_num_threads(before)


def test_rows_of_others_before_and_behind_are_left_alone(loops):
    case = paged_case([20, 5], 16, 1, 32, torch.bfloat16)
    query = torch.full((60, 2, 32), float("nan")).bfloat16()
    query[17:40] = torch.randn(23, 2, 32).bfloat16()
    out = attend(loops, case, query, [20, 3], first_row=17)
    assert_close(out[17:40], naive(case, query[17:40], [20, 3]))
    assert out[:17].isnan().all() and out[40:].isnan().all()


def test_a_query_that_is_not_finite_stays_alone(loops):
    case = paged_case([40, 40], 16, 1, 32, torch.bfloat16)
    query = torch.randn(20, 2, 32).bfloat16()
    query[4, 0, 3], query[13, 1, 0] = float("nan"), float("inf")
    got = attend(loops, case, query, [10, 10])
    assert not got[4, 0].isfinite().any() and not got[13, 1].isfinite().any()
    got[4, 0], got[13, 1] = 0, 0
    assert got.isfinite().all()


def test_the_queries_of_a_packed_projection(loops):
    case = paged_case([9, 40], 16, 2, 32, torch.bfloat16)
    packed = torch.randn(20, 8, 32).bfloat16()
    assert_close(attend(loops, case, packed[:, :4], [9, 11]), naive(case, packed[:, :4], [9, 11]))
