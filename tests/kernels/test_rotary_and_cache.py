from __future__ import annotations

import pytest
import torch

from kernels.reshape_and_cache import cache_slots
from kernels.rotary_and_cache import rotary_and_cache, rotary_and_cache_reference, rotary_and_cache_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import DTYPES, assert_close

BLOCK_SIZE = 4
NUM_HEADS, NUM_KV_HEADS = 5, 3
EPS = 1e-5


def naive_head(head, angles, weight):
    """One head [D] in fp64: norm, then each pair (i, i + R/2) as a complex number turned by its angle."""
    head, half = head.double(), len(angles)
    if weight is not None:
        head = head / (head.pow(2).mean() + EPS).sqrt() * weight.double()
    pairs = torch.complex(head[:half], head[half : 2 * half]) * torch.polar(torch.ones(half).double(), angles.double())
    return torch.cat((pairs.real, pairs.imag, head[2 * half :]))


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (20, 20), (40, 16), (2, 2)])
@pytest.mark.parametrize(("tokens", "padding"), [(0, 0), (1, 0), (17, 5)])
def test_follows_the_formula(tokens, padding, head_dim, rotary_dim, has_norm, dtype, lane):
    num_packed = NUM_HEADS + 2 * NUM_KV_HEADS
    packed = torch.randn(tokens, num_packed + 1, head_dim).to(dtype)
    packed[:, -1] = float("nan")  # what lies behind a row of a strided projection
    angles = torch.randn(tokens, rotary_dim // 2) * 3
    weights = [torch.rand(head_dim).to(dtype) + 0.5 for _ in range(2)] if has_norm else [None, None]
    slots = torch.randperm(10 * BLOCK_SIZE)[:tokens]
    slots[torch.randperm(tokens)[:padding]] = -1
    storage = torch.full((10, 2, 2, BLOCK_SIZE, NUM_KV_HEADS, head_dim), float("nan"), dtype=dtype)

    on_device, stored = lane.put(packed), lane.put(storage)
    lane(rotary_and_cache, rotary_and_cache_triton)(
        on_device[:, :num_packed],
        lane.put(torch.cat((angles.cos(), angles.cos()), -1)),
        lane.put(torch.cat((-angles.sin(), angles.sin()), -1)),
        stored[:, 1, 0],
        stored[:, 1, 1],
        cache_slots(lane.put(slots), BLOCK_SIZE),
        *(None if w is None else lane.put(w) for w in weights),
        EPS,
    )

    got, stored = on_device.cpu(), stored.cpu()
    for token, slot in enumerate(slots.tolist()):
        for head in range(NUM_HEADS + NUM_KV_HEADS):
            weight = weights[head >= NUM_HEADS]
            assert_close(got[token, head], naive_head(packed[token, head], angles[token], weight))
        if slot >= 0:
            cell = storage[slot // BLOCK_SIZE, 1, :, slot % BLOCK_SIZE]
            cell[0] = got[token, NUM_HEADS : NUM_HEADS + NUM_KV_HEADS]
            cell[1] = packed[token, NUM_HEADS + NUM_KV_HEADS : num_packed]
    assert torch.equal(got[:, num_packed - NUM_KV_HEADS : num_packed], packed[:, num_packed - NUM_KV_HEADS : -1])
    assert got[:, -1].isnan().all()
    assert torch.equal(stored.view(torch.uint8), storage.view(torch.uint8))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize(("heads", "kv_heads", "has_norm"), [(32, 8, False), (16, 8, True)])
def test_whole_models_shapes_against_the_reference(heads, kv_heads, has_norm, lane):
    tokens, head_dim = 300, 128
    qkv = torch.randn(tokens, heads + 2 * kv_heads, head_dim, device=lane.device).bfloat16()
    angles = torch.randn(tokens, head_dim // 2, device=lane.device) * 100
    tables = torch.cat((angles.cos(), angles.cos()), -1), torch.cat((-angles.sin(), angles.sin()), -1)
    weights = [torch.rand(head_dim, device=lane.device).bfloat16() if has_norm else None for _ in range(2)]
    slots = cache_slots(torch.randperm(320, device=lane.device)[:tokens], 16)
    storages = [torch.zeros(20, 2, 16, kv_heads, head_dim, device=lane.device).bfloat16() for _ in range(2)]
    copies = qkv.clone(), qkv.clone()
    for op, copy, storage in zip((rotary_and_cache, rotary_and_cache_reference), copies, storages, strict=True):
        op(copy, *tables, storage[:, 0], storage[:, 1], slots, *weights, EPS)
    assert_close(copies[0], copies[1])
    assert_close(storages[0], storages[1])


@pytest.mark.parametrize("lane", [GPU])
def test_reaches_cells_beyond_int32(lane):
    num_blocks = 2**31 // (2 * 2 * BLOCK_SIZE * 3 * 8) + 3
    storage = torch.empty((num_blocks, 2, 2, BLOCK_SIZE, 3, 8), dtype=torch.bfloat16, device=lane.device)
    qkv = lane.put(torch.randn(1, 7, 8).bfloat16())
    tables = torch.ones(1, 8, device=lane.device), torch.zeros(1, 8, device=lane.device)
    slots = cache_slots(lane.put(torch.tensor([num_blocks * BLOCK_SIZE - 1])), BLOCK_SIZE)
    rotary_and_cache(qkv, *tables, storage[:, 1, 0], storage[:, 1, 1], slots)
    assert torch.equal(storage[-1, 1, 0, -1], qkv[0, 1:4])
    assert torch.equal(storage[-1, 1, 1, -1], qkv[0, 4:])
