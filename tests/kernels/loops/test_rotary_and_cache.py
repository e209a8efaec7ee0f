from __future__ import annotations

import pytest
import torch

from kernels.reshape_and_cache import cache_slots
from kernels.rotary_and_cache import rotary_and_cache_reference

BLOCK_SIZE = 4


def case(num_tokens, num_kv_heads, head_dim, rotary_dim):
    qkv = torch.randn(num_tokens, 5 * num_kv_heads, head_dim).bfloat16()
    angles = torch.rand(num_tokens, rotary_dim // 2) * 6
    cos, sin = torch.cat((angles.cos(),) * 2, 1), torch.cat((-angles.sin(), angles.sin()), 1)
    slots = torch.randperm(4 * num_tokens)[:num_tokens]
    slots[::3] = -1
    storage = torch.full((num_tokens + 1, 2, 2, BLOCK_SIZE, num_kv_heads, head_dim), float("nan")).bfloat16()
    return qkv, cos, sin, storage, slots


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "num_kv_heads", "head_dim", "rotary_dim"), [(0, 1, 8, 8), (2, 3, 64, 64), (40, 2, 20, 10)]
)
def test_equals_the_reference(loops, num_tokens, num_kv_heads, head_dim, rotary_dim, normed):
    """On one thread and, from 33 tokens, on several. Cells of other slots, and of other layers, stay what they are."""
    qkv, cos, sin, storage, slots = case(num_tokens, num_kv_heads, head_dim, rotary_dim)
    weights = [(torch.rand(head_dim) + 0.5).bfloat16() if normed else None for _ in range(2)]
    want, want_storage = qkv.clone(), storage.clone()
    rotary_and_cache_reference(
        want, cos, sin, want_storage[:, 1, 0], want_storage[:, 1, 1], cache_slots(slots, BLOCK_SIZE), *weights, 1e-5
    )
    loops.rotary_and_cache(qkv, cos, sin, storage[:, 1, 0], storage[:, 1, 1], slots, *weights, 1e-5)
    torch.testing.assert_close(qkv, want, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(storage, want_storage, atol=2e-2, rtol=2e-2, equal_nan=True)


def test_values_are_copied_bit_by_bit(loops):
    qkv, cos, sin, storage, slots = case(7, 2, 32, 32)
    loops.rotary_and_cache(qkv, cos, sin, storage[:, 1, 0], storage[:, 1, 1], slots, None, None, 0.0)
    kept = slots >= 0
    cells = slots[kept] // BLOCK_SIZE, slots[kept] % BLOCK_SIZE
    assert torch.equal(storage[:, 1, 1][cells], qkv[kept, 8:])
    assert torch.equal(storage[:, 1, 0][cells], qkv[kept, 6:8])
