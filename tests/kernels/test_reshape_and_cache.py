from __future__ import annotations

import pytest
import torch

from kernels.reshape_and_cache import cache_slots, reshape_and_cache, reshape_and_cache_triton
from tests.kernels.lanes import GPU, LANES, REFERENCE
from tests.kernels.tolerances import DTYPES

BLOCK_SIZE = 4


def empty_caches(num_blocks, dtype, layers=2):
    storage = torch.full((num_blocks, layers, 2, BLOCK_SIZE, 3, 8), float("nan"), dtype=dtype)
    return storage, storage[:, 1, 0], storage[:, 1, 1]


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "padding"), [(0, 0), (1, 0), (1, 1), (17, 0), (17, 5), (123, 23)])
def test_writes_its_slots_and_no_other_cell(tokens, padding, dtype, lane):
    packed = torch.randn(tokens, 9, 8).to(dtype)
    key, value = packed[:, 3:6], packed[:, 6:]
    storage = empty_caches(40, dtype)[0]
    slots = torch.randperm(40 * BLOCK_SIZE)[:tokens]
    slots[torch.randperm(tokens)[:padding]] = -1
    want = torch.full_like(storage, float("nan"))
    storage = lane.put(storage)
    write = lane(reshape_and_cache, reshape_and_cache_triton)
    packed = lane.put(packed)
    on_device = packed[:, 3:6], packed[:, 6:], storage[:, 1, 0], storage[:, 1, 1]
    write(*on_device, cache_slots(lane.put(slots), BLOCK_SIZE))
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            want[slot // BLOCK_SIZE, 1, 0, slot % BLOCK_SIZE] = key[token]
            want[slot // BLOCK_SIZE, 1, 1, slot % BLOCK_SIZE] = value[token]
    assert torch.equal(storage.cpu().view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("lane", LANES)
def test_casts_to_the_caches_dtype(lane):
    # Exact in bf16: the interpreter truncates where a GPU rounds.
    key, value = (lane.put(torch.randn(2, 3, 8).bfloat16().float()) for _ in range(2))
    storage = lane.put(empty_caches(2, torch.bfloat16)[0])
    slots = cache_slots(lane.put(torch.tensor([5, 0])), BLOCK_SIZE)
    lane(reshape_and_cache, reshape_and_cache_triton)(key, value, storage[:, 0, 0], storage[:, 0, 1], slots)
    assert torch.equal(storage[1, 0, 0, 1], key[0].bfloat16())
    assert torch.equal(storage[0, 0, 1, 0], value[1].bfloat16())


@pytest.mark.parametrize("lane", [REFERENCE, GPU])
def test_reaches_cells_beyond_int32(lane):
    """A pool of more than 2^31 elements: the last block's cell is written where an int32 offset would wrap."""
    num_blocks = 2**31 // (2 * 2 * BLOCK_SIZE * 3 * 8) + 3
    # Never touched, so it costs a CPU no memory.
    storage = torch.empty((num_blocks, 2, 2, BLOCK_SIZE, 3, 8), dtype=torch.bfloat16, device=lane.device)
    assert storage.numel() > 2**31
    key, value = lane.put(torch.randn(1, 3, 8).bfloat16()), lane.put(torch.randn(1, 3, 8).bfloat16())
    slot = num_blocks * BLOCK_SIZE - 1
    slots = cache_slots(lane.put(torch.tensor([slot])), BLOCK_SIZE)
    reshape_and_cache(key, value, storage[:, 1, 0], storage[:, 1, 1], slots)
    assert torch.equal(storage[-1, 1, 0, -1], key[0])
    assert torch.equal(storage[-1, 1, 1, -1], value[0])
