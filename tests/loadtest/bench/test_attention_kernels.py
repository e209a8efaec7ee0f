from __future__ import annotations

import pytest
import torch

from loadtest.bench import attention_kernels
from loadtest.bench.attention_kernels import (
    AttentionResult,
    DecodeWork,
    Heads,
    PrefillWork,
    causal_flops,
    print_decode,
    print_prefill,
)

HEADS = Heads("small", 4, 2, 64)


def test_flops_count_what_the_mask_leaves():
    query_lens, context_lens = [5, 1, 3], [5, 7, 10]
    seen = 0
    for num_queries, context_len in zip(query_lens, context_lens, strict=True):
        seen += sum(context_len - num_queries + i + 1 for i in range(num_queries))
    assert causal_flops(HEADS, query_lens, context_lens) == 2 * 2 * 64 * 4 * seen


def test_a_cached_token_has_keys_and_values():
    assert HEADS.kv_bytes == 2 * 2 * 64 * 2


def test_one_line_a_point(capsys):
    print_decode([AttentionResult("small", "8 x 512", 10.0, 2e12, 0.5)])
    print_prefill([AttentionResult("small", "512 / 512", 10.0, 3e14, 0.5, 4e14)])
    _, decode, _, prefill = capsys.readouterr().out.splitlines()
    assert decode.split() == "small 8 x 512 10.0 2 50 %".split()
    assert prefill.split() == "small 512 / 512 10.0 300 50 % 400".split()


def test_measures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention_kernels, "ROTATED_BYTES", 1e5)  # a CPU has no L2 to overflow
    assert 0 < DecodeWork(HEADS, [100, 3]).seconds() < 1
    work = PrefillWork(HEADS, [20, 100], [50, 100])
    assert work.flops == causal_flops(HEADS, [20, 100], [50, 100])
    assert 0 < work.seconds() < 1


def test_padding_is_not_computed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention_kernels, "ROTATED_BYTES", 1)
    work = PrefillWork(HEADS, [20, 30], [20, 30], padded_to=64)
    assert 0 < work.seconds() < 1
    assert work.out.shape[0] == 64
    assert work.out[:50].any(dim=(1, 2)).all()
    assert not work.out[50:].any()


def test_contiguous_attention_is_the_same_attention(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention_kernels, "ROTATED_BYTES", 1)  # two layers, the least; the last one's is in `out`
    work = DecodeWork(HEADS, [32, 32, 32])
    work.seconds()
    outs = [work.attend_contiguous(work.in_rows(*layer)) for layer in work._caches.layers]
    assert outs[0].shape == work.out.shape
    assert any(torch.allclose(out.float(), work.out.float(), atol=0.02) for out in outs)
    assert work.contiguous_seconds() > 0
