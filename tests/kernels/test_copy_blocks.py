from __future__ import annotations

import pytest
import torch

from kernels.copy_blocks import copy_blocks, copy_blocks_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import DTYPES


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_shape", [(3, 2, 16, 2, 8), (1, 2, 1, 3, 7), (3, 2, 16, 4, 20)])
@pytest.mark.parametrize("pairs", [[], [(0, 4)], [(0, 4), (0, 2), (3, 1)]])
def test_copies_whole_blocks_and_nothing_else(pairs, block_shape, dtype, lane):
    storage = torch.randn(5, *block_shape).to(dtype)
    storage[4] = float("nan")
    want = storage.clone()
    for source, destination in pairs:
        want[destination] = storage[source]
    sources, destinations = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    storage = lane.put(storage)
    lane(copy_blocks, copy_blocks_triton)(storage, lane.put(sources), lane.put(destinations))
    assert torch.equal(storage.cpu().view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("lane", [GPU])
def test_reaches_blocks_beyond_int32(lane):
    num_blocks = 2**31 // 2**20 + 3
    storage = torch.empty(num_blocks, 2**20, dtype=torch.bfloat16, device=lane.device)
    storage[-1], storage[0] = 1, 2
    storage[-2], storage[1] = 3, 3
    ends = torch.tensor([[num_blocks - 1, 1], [0, num_blocks - 2]], device=lane.device)
    copy_blocks(storage, ends[:, 0], ends[:, 1])
    assert (storage[1] == 1).all()
    assert (storage[-2] == 2).all()
