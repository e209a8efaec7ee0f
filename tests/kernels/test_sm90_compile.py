"""The attention kernels as an H100 or H200 would run them, compiled here: matrix units used, nothing spilled."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from kernels import paged_attention_decode as decode
from kernels import paged_attention_prefill as prefill

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    from tests.kernels.sm90 import CUOBJDUMP, LaunchRecorder, compile_for_sm90

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed"),
    pytest.mark.skipif(HAS_TRITON and not CUOBJDUMP.exists(), reason="this Triton comes without NVIDIA's tools"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton interprets, and compiles nothing"),
]
SHARED_MEMORY_BYTES = 227 * 1024


def tensors(num_rows, num_heads, num_kv_heads, head_dim):
    query = torch.zeros(num_rows, num_heads, head_dim, dtype=torch.bfloat16)
    cache = torch.zeros(4, 16, num_kv_heads, head_dim, dtype=torch.bfloat16)
    return query, cache, torch.empty_like(query)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def check(compiled):
    assert "cp.async.cg.shared.global" in compiled.ptx
    assert compiled.spills_in_loops == 0
    assert compiled.shared_bytes <= SHARED_MEMORY_BYTES


@pytest.mark.parametrize(
    ("num_seqs", "num_heads", "num_kv_heads", "head_dim", "sliding_window"),
    [
        (1, 32, 8, 128, None),
        (5, 32, 8, 128, None),
        (128, 32, 8, 128, None),
        (1, 8, 4, 256, None),
        (5, 32, 8, 128, 4096),
        (5, 32, 32, 80, None),
    ],
    ids=["one", "a few", "many", "wide heads", "a window", "heads of 80"],
)
def test_decode(num_seqs, num_heads, num_kv_heads, head_dim, sliding_window, monkeypatch, tmp_path):
    recorder = LaunchRecorder(decode._paged_attention_decode_kernel)
    monkeypatch.setattr(decode, "_paged_attention_decode_kernel", recorder)
    query, cache, out = tensors(num_seqs, num_heads, num_kv_heads, head_dim)
    batch = decode.decode_batch(int32(0).expand(num_seqs, 1), int32(16).expand(num_seqs), 16)
    decode.paged_attention_decode_triton(query, cache, cache, batch, 0.1, out, sliding_window)
    compiled = compile_for_sm90(recorder.launches[0], tmp_path)
    assert "mma.sync" in compiled.ptx
    check(compiled)


@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "num_kv_heads", "head_dim", "sliding_window"),
    [
        (16, 32, 8, 128, None),
        (128, 32, 8, 128, None),
        (16, 8, 4, 256, None),
        (128, 32, 32, 80, None),
        (16, 32, 8, 128, 4096),
    ],
    ids=["few rows", "many rows", "wide heads", "heads of 80", "a window"],
)
def test_prefill(num_tokens, num_heads, num_kv_heads, head_dim, sliding_window, monkeypatch, tmp_path):
    recorder = LaunchRecorder(prefill._paged_attention_prefill_kernel)
    monkeypatch.setattr(prefill, "_paged_attention_prefill_kernel", recorder)
    query, cache, out = tensors(num_tokens, num_heads, num_kv_heads, head_dim)
    batch = prefill.prefill_batch(int32(0)[None], int32(0, num_tokens), int32(num_tokens), num_tokens, 16)
    prefill.paged_attention_prefill_triton(query, cache, cache, batch, 0.1, out, sliding_window)
    compiled = compile_for_sm90(recorder.launches[0], tmp_path)
    assert "wgmma.mma_async" in compiled.ptx
    assert "mma.sync" not in compiled.ptx
    check(compiled)
