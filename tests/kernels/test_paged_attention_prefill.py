from __future__ import annotations

import pytest
import torch

from kernels.paged_attention_prefill import paged_attention_prefill, prefill_batch
from tests.kernels.paged_case import naive_attention, paged_case
from tests.kernels.tolerances import DTYPES, assert_close


def run(case, query, query_lens, scale):
    starts = torch.tensor([0, *query_lens]).cumsum(0, dtype=torch.int32)
    out = torch.full(query.shape, float("nan"), dtype=query.dtype)
    longest = max(query_lens, default=0)
    batch = prefill_batch(case.block_table, starts, case.context_lens, longest, case.key_cache.shape[1])
    paged_attention_prefill(query, case.key_cache, case.value_cache, batch, scale, out)
    return out


def naive(case, query, query_lens, scale):
    rows, start = [], 0
    for keys, values, count in zip(case.keys, case.values, query_lens, strict=True):
        for i in range(count):
            visible = len(keys) - count + i + 1
            rows.append(naive_attention(query[start + i], keys[:visible], values[:visible], scale))
        start += count
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [
        ([1], [1]),
        ([17], [17]),
        ([123], [123]),
        ([1], [40]),
        ([16], [48]),
        ([5, 30, 2], [5, 30, 2]),
        ([5, 1, 20, 3], [60, 17, 20, 4]),
    ],
    ids=str,
)
def test_follows_the_formula(query_lens, context_lens, heads, dtype):
    num_heads, num_kv_heads = heads
    case = paged_case(context_lens, 16, num_kv_heads, 20, dtype)
    query = torch.randn(sum(query_lens), num_heads, 20).to(dtype)
    assert_close(run(case, query, query_lens, 0.3), naive(case, query, query_lens, 0.3))


@pytest.mark.parametrize("block_size", [1, 2, 256])
def test_any_block_size(block_size):
    case = paged_case([33, 70], block_size, 2, 8, torch.float32)
    query = torch.randn(33 + 9, 4, 8)
    assert_close(run(case, query, [33, 9], 0.5), naive(case, query, [33, 9], 0.5))


def test_no_sequences():
    case = paged_case([], 16, 2, 8, torch.float32)
    assert run(case, torch.randn(0, 4, 8), [], 0.5).shape == (0, 4, 8)


def test_a_chunk_equals_its_part_of_the_whole():
    case = paged_case([100], 16, 2, 8, torch.float32)
    query = torch.randn(100, 4, 8)
    whole = run(case, query, [100], 0.5)
    assert_close(run(case, query[63:], [37], 0.5), whole[63:])
