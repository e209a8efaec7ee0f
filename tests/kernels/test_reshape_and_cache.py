from __future__ import annotations

import pytest
import torch

from kernels.reshape_and_cache import cache_slots, reshape_and_cache
from tests.kernels.tolerances import DTYPES

BLOCK_SIZE = 4


def empty_caches(num_blocks, dtype, layers=2):
    storage = torch.full((num_blocks, layers, 2, BLOCK_SIZE, 3, 8), float("nan"), dtype=dtype)
    return storage, storage[:, 1, 0], storage[:, 1, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "padding"), [(0, 0), (1, 0), (1, 1), (17, 0), (17, 5), (123, 23)])
def test_writes_its_slots_and_no_other_cell(tokens, padding, dtype):
    packed = torch.randn(tokens, 9, 8).to(dtype)
    key, value = packed[:, 3:6], packed[:, 6:]
    storage, key_cache, value_cache = empty_caches(40, dtype)
    slots = torch.randperm(40 * BLOCK_SIZE)[:tokens]
    slots[torch.randperm(tokens)[:padding]] = -1
    reshape_and_cache(key, value, key_cache, value_cache, cache_slots(slots, BLOCK_SIZE))
    want = torch.full_like(storage, float("nan"))
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            want[slot // BLOCK_SIZE, 1, 0, slot % BLOCK_SIZE] = key[token]
            want[slot // BLOCK_SIZE, 1, 1, slot % BLOCK_SIZE] = value[token]
    assert torch.equal(storage.view(torch.uint8), want.view(torch.uint8))


def test_reaches_cells_beyond_int32():
    """A pool of more than 2^31 elements: the last block's cell is written where an int32 offset would wrap."""
    num_blocks = 2**31 // (2 * 2 * BLOCK_SIZE * 3 * 8) + 3
    storage = torch.empty((num_blocks, 2, 2, BLOCK_SIZE, 3, 8), dtype=torch.bfloat16)  # never touched: costs no memory
    assert storage.numel() > 2**31
    key, value = torch.randn(1, 3, 8).bfloat16(), torch.randn(1, 3, 8).bfloat16()
    slot = num_blocks * BLOCK_SIZE - 1
    slots = cache_slots(torch.tensor([slot]), BLOCK_SIZE)
    reshape_and_cache(key, value, storage[:, 1, 0], storage[:, 1, 1], slots)
    assert torch.equal(storage[-1, 1, 0, -1], key[0])
    assert torch.equal(storage[-1, 1, 1, -1], value[0])
