"""Through the door, paged_attention_decode on CPU tensors."""

from __future__ import annotations

import pytest
import torch

from kernels.paged_attention_decode import decode_batch, paged_attention_decode
from tests.kernels.attention_lanes import assert_close
from tests.kernels.paged_case import forget_unseen, naive_attention, paged_case


def case_of(context_lens, num_heads, num_kv_heads):
    """(case, query), 16 bits, blocks of 16."""
    case = paged_case(context_lens, 16, num_kv_heads, 20, torch.bfloat16)
    return case, torch.randn(len(context_lens), num_heads, 20).to(torch.bfloat16)


def batch_of(case):
    return decode_batch(case.block_table, case.context_lens, 16)


def naive(case, query, sliding_window=None):
    first = -(sliding_window or 0)
    zipped = zip(query, case.keys, case.values, strict=True)
    return torch.stack([naive_attention(q, k[first:], v[first:], 0.3) for q, k, v in zipped])


@pytest.mark.parametrize("sliding_window", [None, 130])
@pytest.mark.parametrize("heads", [(12, 12), (9, 3)])
def test_many_16_bit_vectors(heads, sliding_window):
    """Enough for the reference to take all heads of all rows at once."""
    case, query = case_of([140, 133, 148, 125, 140, 147, 126, 131, 132, 145, 144], *heads)
    out = torch.full_like(query, float("nan"))
    paged_attention_decode(query, case.key_cache, case.value_cache, batch_of(case), 0.3, out, sliding_window)
    assert_close(out, naive(case, query, sliding_window))


@pytest.mark.parametrize("heads", [(12, 12), (9, 3)])
def test_what_lies_before_the_window_is_not_read(heads):
    case, query = case_of([140, 133, 148, 125, 1, 240, 147, 126, 131, 132, 145, 144], *heads)
    case = forget_unseen(case, [1] * 12, 70)
    out = torch.full_like(query, float("nan"))
    paged_attention_decode(query, case.key_cache, case.value_cache, batch_of(case), 0.3, out, 70)
    assert_close(out, naive(case, query, 70))


def test_many_16_bit_vectors_have_a_gradient():
    """What other sequences left in unread cells, NaN here, does not reach it."""
    case, query = case_of([140, 133, 148], 12, 12)
    query.requires_grad_()
    out = torch.zeros_like(query)
    paged_attention_decode(query, case.key_cache, case.value_cache, batch_of(case), 0.3, out)
    out.float().square().sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()
    assert query.grad.any()


def test_one_batch_serves_caches_of_other_strides():
    """What the reference remembers of a batch is right for each cache that it meets."""
    case, query = case_of([140, 133, 148], 12, 12)
    batch = batch_of(case)
    dense = [cache.contiguous() for cache in (case.key_cache, case.value_cache)]
    assert dense[0].stride() != case.key_cache.stride()
    for caches in (dense, (case.key_cache, case.value_cache)):
        out = torch.empty_like(query)
        paged_attention_decode(query, *caches, batch, 0.3, out)
        assert_close(out, naive(case, query))
