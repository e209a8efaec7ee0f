from __future__ import annotations

import pytest
import torch

from kernels.ordered_attention_decode import (
    BLOCK_KV,
    OrderedDecodeConfig,
    ordered_attention_decode_triton,
    ordered_split_len,
)
from kernels.paged_attention_decode import decode_batch, paged_attention_decode_reference
from kernels.paged_attention_prefill import paged_attention_prefill_triton, prefill_batch
from tests.kernels.attention_lanes import GPU_ONLY, assert_close, put, variants
from tests.kernels.paged_case import PagedCase, forget_unseen, paged_case

INTERPRET = variants("interpret", torch.float16)
SPLIT = 64


def decode(lane, case: PagedCase, query, split_len=SPLIT, programs=None, **options):
    """query of the sequences' last tokens."""
    case, query = put(case, lane), lane.put(query)
    out = torch.full_like(query, float("nan"))
    rows = torch.arange(len(query), device=query.device)
    tensors = query, case.key_cache, case.value_cache, case.block_table, rows, case.context_lens
    arrivals = torch.zeros(len(query), 256, dtype=torch.int32, device=query.device)
    order = torch.randperm(len(query), dtype=torch.int32, device=query.device)
    ordered_attention_decode_triton(
        *tensors, 16, split_len, order, arrivals, 0.3, out, programs_per_sequence=programs, **options
    )
    assert not arrivals.any()
    return out.cpu()


def prefill(lane, case: PagedCase, query, lens, split_len=SPLIT, **options):
    """query of the sequences' last tokens, lens of each."""
    case, query = put(case, lane), lane.put(query)
    out = torch.full_like(query, float("nan"))
    starts = torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32, device=query.device)
    batch = prefill_batch(case.block_table, starts, case.context_lens, max(lens), 16, split_len=split_len)
    paged_attention_prefill_triton(query, case.key_cache, case.value_cache, batch, 0.3, out, **options)
    return out.cpu()


@pytest.mark.parametrize(("lane", "dtype"), [*INTERPRET, *GPU_ONLY])
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("programs", [1, 3])
def test_follows_the_formula(programs, window, lane, dtype):
    case = paged_case([1, 64, 65, 200], 16, 2, 32, dtype)
    query = torch.randn(4, 6, 32).to(dtype)
    want = torch.empty_like(query)
    batch = decode_batch(case.block_table, case.context_lens, 16)
    paged_attention_decode_reference(query, case.key_cache, case.value_cache, batch, 0.3, want, window)
    assert_close(decode(lane, case, query, programs=programs, sliding_window=window), want)


@pytest.mark.parametrize(("lane", "dtype"), [*INTERPRET, *GPU_ONLY])
def test_padding_is_left_alone(lane, dtype):
    case = paged_case([0, 130, 0], 16, 1, 32, dtype)
    out = decode(lane, case, torch.randn(3, 2, 32).to(dtype))
    assert out[[0, 2]].isnan().all() and out[1].isfinite().all()


@pytest.mark.parametrize(("lane", "dtype"), [*INTERPRET, *GPU_ONLY])
@pytest.mark.parametrize("window", [None, 70])
def test_a_prompt_follows_the_formula(window, lane, dtype):
    """Cut where decodes are, which changes nothing but bits."""
    case = paged_case([40, 150], 16, 2, 32, dtype)
    query = torch.randn(40 + 90, 6, 32).to(dtype)
    got = prefill(lane, case, query, [40, 90], sliding_window=window)
    assert_close(got, prefill(lane, case, query, [40, 90], None, sliding_window=window))


@pytest.mark.parametrize(("lane", "dtype"), [*INTERPRET, *GPU_ONLY])
def test_what_lies_before_a_window_is_not_read(lane, dtype):
    """Nor does it change a bit, of decodes and of prompts."""
    case = paged_case([70, 200], 16, 2, 32, dtype)
    one, many = torch.randn(2, 6, 32).to(dtype), torch.randn(10 + 90, 6, 32).to(dtype)
    got = decode(lane, forget_unseen(case, [1, 1], 37), one, sliding_window=37)
    assert got.isfinite().all() and got.equal(decode(lane, case, one, sliding_window=37))
    got = prefill(lane, forget_unseen(case, [10, 90], 37), many, [10, 90], sliding_window=37)
    assert got.isfinite().all() and got.equal(prefill(lane, case, many, [10, 90], sliding_window=37))


GPU_CASES = [(32, 8, 128, None), (8, 2, 64, None), (16, 16, 64, None), (32, 8, 128, 700), (14, 2, 64, None)]


@pytest.mark.parametrize(("lane", "dtype"), GPU_ONLY)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "window"), GPU_CASES)
def test_a_tokens_bits_tell_neither_how_it_was_computed_nor_beside_what(
    num_heads, num_kv_heads, head_dim, window, lane, dtype
):
    """Of a prompt at once, in chunks, as decodes, beside one or many others, by however many programs."""
    lens = [2100, 513, 512, 64, 1, 1500, 777]
    case = paged_case(lens, 16, num_kv_heads, head_dim, dtype)
    whole = torch.randn(sum(lens), num_heads, head_dim).to(dtype)
    expected = prefill(lane, case, whole, lens, 512, sliding_window=window)
    ends = torch.tensor(lens).cumsum(0)
    last = ends - 1
    assert torch.equal(decode(lane, case, whole[last], 512, sliding_window=window), expected[last])
    for programs in (1, 2, 5):
        got = decode(lane, case, whole[last], 512, programs, sliding_window=window)
        assert torch.equal(got, expected[last]), programs
    for chunk in (1, 5, 37, 300):
        counts = [min(chunk, length) for length in lens]
        rows = torch.cat([torch.arange(end - count, end) for end, count in zip(ends.tolist(), counts, strict=True)])
        got = prefill(lane, case, whole[rows], counts, 512, sliding_window=window)
        assert torch.equal(got, expected[rows]), chunk
    for seq, end in enumerate(ends.tolist()):
        some = PagedCase(
            [], [], case.key_cache, case.value_cache, case.block_table[seq : seq + 1], case.context_lens[seq : seq + 1]
        )
        assert torch.equal(decode(lane, some, whole[end - 1 : end], 512, sliding_window=window)[0], expected[end - 1])
    for length in (1, 63, 64, 65, 511, 512, 513, 1024, 1025, 2000):  # of the first, by what it was once
        some = PagedCase(
            [], [], case.key_cache, case.value_cache, case.block_table[:1], torch.tensor([length], dtype=torch.int32)
        )
        got = decode(lane, some, whole[length - 1 : length], 512, sliding_window=window)
        assert torch.equal(got[0], expected[length - 1]), length
    many = PagedCase(
        [], [], case.key_cache, case.value_cache, case.block_table[:1].expand(300, -1).contiguous(),
        torch.arange(1, 301, dtype=torch.int32) * 7,
    )  # fmt: skip
    places = many.context_lens.long() - 1
    assert torch.equal(decode(lane, many, whole[places], 512, sliding_window=window), expected[places])
    for config in (OrderedDecodeConfig(), *(OrderedDecodeConfig(16, warps, num_stages=4) for warps in (1, 2))):
        if num_heads // num_kv_heads <= config.block_m:
            got = decode(lane, case, whole[last], 512, sliding_window=window, config=config)
            assert torch.equal(got, expected[last]), config


def test_splits_are_bounded_in_number():
    for length in (1, 2048, 8192, 131072, 1_000_000):
        split_len = ordered_split_len(length)
        assert split_len % BLOCK_KV == 0 and split_len >= 512 and -(-length // split_len) <= 64
