from __future__ import annotations

import pytest
import torch

from kernels.graph_capture import capture_graph
from kernels.paged_attention_decode import decode_batch, paged_attention_decode
from kernels.paged_attention_prefill import prefill_batch
from kernels.reshape_and_cache import cache_slots, reshape_and_cache
from kernels.rms_norm import add_rms_norm
from service.layers import attention as attention_module
from service.layers.attention import AttentionInputs, LayerCache, paged_attention
from tests.kernels.paged_case import naive_attention

BLOCK_SIZE, KV_HEADS, HEADS, HEAD_DIM = 4, 2, 4, 8


def empty_cache(num_blocks: int = 8) -> LayerCache:
    shape = (num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    return LayerCache(torch.full(shape, float("nan")), torch.full(shape, float("nan")))


def heads(num_tokens: int):
    packed = torch.randn(num_tokens, HEADS + 2 * KV_HEADS, HEAD_DIM)
    return packed[:, :HEADS], packed[:, HEADS : HEADS + KV_HEADS], packed[:, HEADS + KV_HEADS :]


def attention(query, key, value, cache, inputs, sliding_window=None):
    """As a block does: write, then attend."""
    reshape_and_cache(key, value, *cache, inputs.slots)
    return paged_attention(query, cache, inputs, HEAD_DIM**-0.5, sliding_window)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def prefill_inputs(block_ids, start, stop):
    slots = torch.tensor([block_ids[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, stop)])
    batch = prefill_batch(int32([block_ids]), int32([0, stop - start]), int32([stop]), stop - start, BLOCK_SIZE)
    return AttentionInputs(cache_slots(slots, BLOCK_SIZE), None, batch)


def test_a_mixed_batch_writes_first_and_attends_apart():
    cache = empty_cache()
    old_query, old_key, old_value = heads(5)
    attention(old_query, old_key, old_value, cache, prefill_inputs([6, 1], 0, 5))

    query, key, value = heads(1 + 3)  # the sixth token of the first sequence; three of a new one
    inputs = AttentionInputs(
        cache_slots(torch.tensor([1 * BLOCK_SIZE + 1, 12, 13, 14]), BLOCK_SIZE),
        decode_batch(int32([[6, 1]]), int32([6]), BLOCK_SIZE),
        prefill_batch(int32([[3, 0]]), int32([1, 4]), int32([3]), 3, BLOCK_SIZE),
    )
    out = attention(query, key, value, cache, inputs)

    assert out.shape == (4, HEADS * HEAD_DIM)
    scale = HEAD_DIM**-0.5
    keys, values = torch.cat((old_key, key[:1])), torch.cat((old_value, value[:1]))
    want = [naive_attention(query[0], keys, values, scale)]
    want += [naive_attention(query[i], key[1 : i + 1], value[1 : i + 1], scale) for i in (1, 2, 3)]
    torch.testing.assert_close(out.double(), torch.stack(want).flatten(1), atol=1e-5, rtol=1e-5)


def test_a_prompt_in_chunks_equals_the_prompt():
    cache = empty_cache()
    query, key, value = heads(11)
    whole = attention(query, key, value, cache, prefill_inputs([5, 2, 7], 0, 11))
    cache = empty_cache()
    parts = [
        attention(query[a:b], key[a:b], value[a:b], cache, prefill_inputs([0, 3, 4], a, b))
        for a, b in ((0, 4), (4, 9), (9, 11))
    ]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-5, rtol=1e-5)


def test_a_window_hides_what_lies_before_it():
    """In a decode and in a prompt of one mixed batch."""
    cache = empty_cache()
    old_query, old_key, old_value = heads(5)
    attention(old_query, old_key, old_value, cache, prefill_inputs([6, 1], 0, 5), 3)
    query, key, value = heads(1 + 4)
    inputs = AttentionInputs(
        cache_slots(torch.tensor([1 * BLOCK_SIZE + 1, 12, 13, 14, 15]), BLOCK_SIZE),
        decode_batch(int32([[6, 1]]), int32([6]), BLOCK_SIZE),
        prefill_batch(int32([[3, 0]]), int32([1, 5]), int32([4]), 4, BLOCK_SIZE),
    )
    out = attention(query, key, value, cache, inputs, 3)
    scale = HEAD_DIM**-0.5
    keys, values = torch.cat((old_key, key[:1]))[-3:], torch.cat((old_value, value[:1]))[-3:]
    want = [naive_attention(query[0], keys, values, scale)]
    want += [
        naive_attention(query[i], key[max(1, i - 2) : i + 1], value[max(1, i - 2) : i + 1], scale) for i in range(1, 5)
    ]
    torch.testing.assert_close(out.double(), torch.stack(want).flatten(1), atol=1e-5, rtol=1e-5)


def test_padding_of_the_decodes_may_be_rows_of_prompts():
    """As in a step of fixed size, whose border between the two moves."""
    query, key, value = heads(1 + 3 + 2)
    slots = cache_slots(torch.tensor([0, 12, 13, 14, -1, -1]), BLOCK_SIZE)
    prefill = prefill_batch(int32([[3]]), int32([1, 4]), int32([3]), 6, BLOCK_SIZE)
    exact = AttentionInputs(slots, decode_batch(int32([[0]]), int32([1]), BLOCK_SIZE), prefill)
    padded = AttentionInputs(slots, decode_batch(int32([[0]] * 4), int32([1, 0, 0, 0]), BLOCK_SIZE), prefill)
    want = attention(query, key, value, empty_cache(), exact)
    assert want[:4].isfinite().all()
    assert torch.equal(attention(query, key, value, empty_cache(), padded)[:4], want[:4])


def test_what_keeps_the_l1_cache_keeps_it_in_all_layers():
    decode = decode_batch(int32([[0]]), int32([1]), BLOCK_SIZE)
    slots = cache_slots(torch.tensor([0]), BLOCK_SIZE)
    group = AttentionInputs(slots, decode, None).read_at(torch.tensor([0]), decode)
    kept = AttentionInputs(slots, decode, None, last=group.last, others=(group,), group_of=(0, 1)).keeping_l1()
    (other,) = kept.others
    for inputs in (kept, kept.last, other, other.last):
        assert inputs.decode.keeps_l1 and inputs.decode.splits is decode.splits
    assert not decode.keeps_l1 and kept.afresh().decode.keeps_l1


@pytest.mark.gpu
@pytest.mark.parametrize(("chunk", "past"), [(1024, 2048), (48, 200), (2, 3)])
def test_decodes_beside_prompts_are_the_same_as_after_them(chunk, past, monkeypatch):
    """In a chain of layers, where each reads what the one before it has written. Padding of the decodes reaches into
    the prompt's rows."""
    num_decodes, padding, block, heads, kv_heads, dim = 40, 24, 16, 16, 4, 128
    lens = [100 + 37 * seq for seq in range(num_decodes)]
    blocks = torch.randperm(sum(-(-length // block) for length in [*lens, past + chunk]), dtype=torch.int32)
    table = torch.zeros(num_decodes + padding + 1, 256, dtype=torch.int32)
    for row, length in zip([*range(num_decodes), -1], [*lens, past + chunk], strict=True):
        (table[row, : -(-length // block)], blocks) = blocks.split(
            [-(-length // block), len(blocks) - -(-length // block)]
        )
    positions = [(seq, length - 1) for seq, length in enumerate(lens)]
    positions += [(-1, past + i) for i in range(chunk)]
    slots = torch.tensor([int(table[seq, p // block]) * block + p % block for seq, p in positions]).cuda()
    decode = decode_batch(table[:-1].cuda(), int32([*lens, *[0] * padding]).cuda(), block)
    starts, ends = int32([num_decodes, num_decodes + chunk]).cuda(), int32([past + chunk]).cuda()
    prefill = prefill_batch(table[-1:].cuda(), starts, ends, chunk, block)
    shape = (sum(-(-length // block) for length in [*lens, past + chunk]), block, kv_heads, dim)
    caches = [LayerCache(*torch.randn(2, *shape, device="cuda").bfloat16()) for _ in range(8)]
    x = torch.randn(num_decodes + chunk + padding, heads * dim, device="cuda").bfloat16()
    weight = torch.ones(heads * dim, device="cuda", dtype=torch.bfloat16)
    mixed = AttentionInputs(cache_slots(torch.nn.functional.pad(slots, (0, padding), value=-1), block), decode, prefill)

    def chain():
        y, residual = x, torch.zeros_like(x)
        for cache in caches:
            query, key, value = y.view(len(y), heads, dim), y[:, : kv_heads * dim], y[:, -kv_heads * dim :]
            reshape_and_cache(key.view(-1, kv_heads, dim), value.view(-1, kv_heads, dim), *cache, mixed.slots)
            y = paged_attention(query, cache, mixed, dim**-0.5)
            y, residual = add_rms_norm(y, residual, weight, 1e-5)
        return y[: num_decodes + chunk]

    def after_the_prompts(*args, **options):
        torch.cuda.synchronize()
        paged_attention_decode(*args, **options)

    with torch.inference_mode():
        with monkeypatch.context() as patched:
            patched.setattr(attention_module, "paged_attention_decode", after_the_prompts)
            want = chain()
        graph, out = capture_graph(chain, torch.cuda.Stream())
        for _ in range(20):
            out.fill_(float("nan"))
            graph.replay()
            assert torch.equal(out, want)
