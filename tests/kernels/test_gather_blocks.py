from __future__ import annotations

import pytest
import torch

from kernels.gather_blocks import gather_blocks, gather_blocks_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import DTYPES


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_shape", [(3, 2, 16, 2, 8), (1, 2, 1, 3, 7), (3, 2, 16, 4, 20)])
@pytest.mark.parametrize("ids", [[], [4], [4, 0, 2]])
def test_copies_out_the_blocks_and_no_more(ids, block_shape, dtype, lane):
    storage = torch.randn(5, *block_shape).to(dtype)
    storage[1] = float("nan")
    got = lane.put(torch.full((3, *block_shape), float("nan"), dtype=dtype))
    want = torch.full((3, *block_shape), float("nan"), dtype=dtype)
    for i, block_id in enumerate(ids):
        want[i] = storage[block_id]
    on_device = lane.put(storage)
    lane(gather_blocks, gather_blocks_triton)(on_device, lane.put(torch.tensor(ids, dtype=torch.int64)), got)
    assert torch.equal(got.cpu().view(torch.uint8), want.view(torch.uint8))
    assert torch.equal(on_device.cpu().view(torch.uint8), storage.view(torch.uint8))


@pytest.mark.parametrize("lane", [GPU])
def test_reaches_blocks_beyond_int32(lane):
    num_blocks = 2**31 // 2**20 + 3
    storage = torch.empty(num_blocks, 2**20, dtype=torch.bfloat16, device=lane.device)
    storage[-1], storage[1] = 1, 2
    staging = torch.empty(2, 2**20, dtype=torch.bfloat16, device=lane.device)
    gather_blocks(storage, torch.tensor([1, num_blocks - 1], device=lane.device), staging)
    assert (staging[0] == 2).all()
    assert (staging[1] == 1).all()
