from __future__ import annotations

import pytest
import torch

from kernels.scatter_blocks import scatter_blocks, scatter_blocks_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import DTYPES


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_shape", [(3, 2, 16, 2, 8), (1, 2, 1, 3, 7), (3, 2, 16, 4, 20)])
@pytest.mark.parametrize("ids", [[], [4], [4, 0, 2]])
def test_copies_in_the_blocks_and_touches_no_other(ids, block_shape, dtype, lane):
    staging = torch.randn(3, *block_shape).to(dtype)
    storage = torch.randn(5, *block_shape).to(dtype)
    storage[[1, 3]] = float("nan")
    want = storage.clone()
    for i, block_id in enumerate(ids):
        want[block_id] = staging[i]
    got = lane.put(storage)
    lane(scatter_blocks, scatter_blocks_triton)(lane.put(staging), lane.put(torch.tensor(ids, dtype=torch.int64)), got)
    assert torch.equal(got.cpu().view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("lane", [GPU])
def test_reaches_blocks_beyond_int32(lane):
    num_blocks = 2**31 // 2**20 + 3
    storage = torch.empty(num_blocks, 2**20, dtype=torch.bfloat16, device=lane.device)
    storage[0] = 7
    staging = torch.tensor([[1.0], [2.0]], device=lane.device).bfloat16().expand(2, 2**20).contiguous()
    scatter_blocks(staging, torch.tensor([1, num_blocks - 1], device=lane.device), storage)
    assert (storage[0] == 7).all()
    assert (storage[1] == 1).all()
    assert (storage[-1] == 2).all()
