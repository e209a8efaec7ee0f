from __future__ import annotations

import pytest
import torch

from kernels.paged_attention_decode import decode_batch, paged_attention_decode
from tests.kernels.paged_case import naive_attention, paged_case
from tests.kernels.tolerances import DTYPES, assert_close


def run(case, query, scale):
    out = torch.full(query.shape, float("nan"), dtype=query.dtype)
    batch = decode_batch(case.block_table, case.context_lens, case.key_cache.shape[1])
    paged_attention_decode(query, case.key_cache, case.value_cache, batch, scale, out)
    return out


def naive(case, query, scale):
    rows = [
        naive_attention(q, k, v, scale) if len(k) else torch.zeros_like(q).double()
        for q, k, v in zip(query, case.keys, case.values, strict=True)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(
    "context_lens",
    [[1], [16], [17], [123], [1, 1], [15, 16, 17], [200, 3, 1, 64, 65], [48, 48, 48], [0], [5, 0, 70, 0]],
    ids=str,
)
def test_follows_the_formula(context_lens, heads, dtype):
    num_heads, num_kv_heads = heads
    case = paged_case(context_lens, 16, num_kv_heads, 20, dtype)
    query = torch.randn(len(context_lens), num_heads, 20).to(dtype)
    assert_close(run(case, query, 0.3), naive(case, query, 0.3))


@pytest.mark.parametrize("block_size", [1, 2, 256])
def test_any_block_size(block_size):
    case = paged_case([1, 33, 300], block_size, 2, 8, torch.float32)
    query = torch.randn(3, 4, 8)
    assert_close(run(case, query, 0.5), naive(case, query, 0.5))


def test_takes_the_queries_of_a_packed_projection():
    case = paged_case([9, 40], 16, 2, 8, torch.float32)
    packed = torch.full((2, 8, 8), float("nan"))
    packed[:, :4] = torch.randn(2, 4, 8)
    assert_close(run(case, packed[:, :4], 0.5), naive(case, packed[:, :4], 0.5))


def test_no_sequences():
    case = paged_case([], 16, 2, 8, torch.float32)
    assert run(case, torch.randn(0, 4, 8), 0.5).shape == (0, 4, 8)


def test_neighbours_do_not_matter():
    """Padding to the batch's longest never changes a row by more than rounding."""
    case = paged_case([50, 3, 90, 120], 16, 2, 8, torch.float32)
    query = torch.randn(4, 4, 8)
    together = run(case, query, 0.5)
    for row in range(4):
        alone = torch.full((1, 4, 8), float("nan"))
        batch = decode_batch(case.block_table[row : row + 1], case.context_lens[row : row + 1], 16)
        paged_attention_decode(query[row : row + 1], case.key_cache, case.value_cache, batch, 0.5, alone)
        assert_close(alone[0], together[row])


def test_long_and_many():
    """Beyond one group's bound on padded cells."""
    context_lens = [3000, 2900, 2800, 2000, 1999, 1500, 700]
    case = paged_case(context_lens, 128, 1, 4, torch.float32)
    query = torch.randn(len(context_lens), 2, 4)
    assert len(decode_batch(case.block_table, case.context_lens, 128).groups) > 1
    assert_close(run(case, query, 0.5), naive(case, query, 0.5))
