from __future__ import annotations

import pytest
import torch

from kernels.move_blocks import move_blocks, move_blocks_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import DTYPES


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8])
@pytest.mark.parametrize("block_shape", [(2, 2, 1, 3, 7), (3, 2, 16, 2, 8), (30, 2, 1, 4, 128)])
@pytest.mark.parametrize("num_pairs", [0, 1, 23])
def test_moves_whole_blocks_and_nothing_else(num_pairs, block_shape, dtype, lane):
    source = (100 * torch.randn(29, *block_shape)).abs().to(dtype)
    destination = (100 * torch.randn(31, *block_shape)).abs().to(dtype)
    if dtype.is_floating_point:
        source[3] = float("nan")
        destination[5] = float("nan")
    sources = torch.randint(0, len(source), (num_pairs,))
    destinations = torch.randperm(len(destination))[:num_pairs]
    want = destination.clone()
    for here, there in zip(sources.tolist(), destinations.tolist(), strict=True):
        want[there] = source[here]
    moved = lane.put(destination)
    lane(move_blocks, move_blocks_triton)(lane.put(source), lane.put(sources), moved, lane.put(destinations))
    assert torch.equal(moved.cpu().view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize("block_shape", [(2, 2, 1, 3, 8), (32, 2, 1, 8, 128)])
def test_to_pinned_memory_and_back(block_shape, lane):
    device = torch.randn(50, *block_shape, device=lane.device)
    before = device.clone()
    host = torch.full((40, *block_shape), float("nan"), pin_memory=True)
    here, there = torch.randperm(50, device=lane.device)[:30], torch.randperm(40, device=lane.device)[:30]
    move_blocks(device, here, host, there)
    torch.cuda.synchronize()
    assert torch.equal(host[there.cpu()], before[here].cpu())
    assert host.isnan().flatten(1).all(1).sum() == 10, "the others are as they were"
    device[here] = float("nan")
    move_blocks(host, there, device, here)
    assert torch.equal(device, before)


@pytest.mark.parametrize("lane", [GPU])
def test_reaches_blocks_beyond_int32(lane):
    storage = torch.zeros(2**31 // 2**20 + 3, 2**20, dtype=torch.bfloat16, device=lane.device)
    storage[-1] = 3
    staged = torch.zeros(1, 2**20, dtype=torch.bfloat16, device=lane.device)
    first, last = (torch.tensor([at], device=lane.device) for at in (0, len(storage) - 1))
    move_blocks(storage, last, staged, first)
    assert (staged == 3).all()
    staged.fill_(5)
    move_blocks(staged, first, storage, last)
    assert (storage[-1] == 5).all()
    assert (storage[-2] == 0).all()
