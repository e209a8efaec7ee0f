from __future__ import annotations

import pytest
import torch

from service.core.block_moves import Transfer
from service.runner.host_blocks import Fp8HostBlocks, PlainHostBlocks
from service.runner.kv_storage import KvLayout, KvStorage
from service.runner.kv_transfer import KvTransfer

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SMALL, LARGE = KvLayout(2, 4, 2, 8, torch.float32), KvLayout(2, 64, 4, 128, torch.float32)
"""Blocks that move together, and such as have a copy each."""


@pytest.fixture(params=DEVICES, scope="module")
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(params=[SMALL, LARGE], ids=["small", "large"])
def storage(request: pytest.FixtureRequest, device: torch.device) -> KvStorage:
    storage = KvStorage(request.param, 6, device)
    storage.blocks.copy_(torch.randn(storage.blocks.shape))
    return storage


def host_blocks(storage: KvStorage, num_blocks: int) -> PlainHostBlocks:
    return PlainHostBlocks(storage.layout, num_blocks, pinned=storage.blocks.is_cuda)


def finished_ids(transfer: KvTransfer) -> list[int]:
    finished = transfer.take_finished(wait=True)
    assert all(f.seconds is not None and f.seconds > 0 for f in finished)
    return [f.transfer_id for f in finished]


def test_blocks_come_back_as_they_went_into_other_places(storage: KvStorage):
    transfer = KvTransfer(storage, host_blocks(storage, 4))
    before = storage.blocks.clone()
    transfer.start([Transfer(7, True, (5, 2), (0, 3))])
    assert finished_ids(transfer) == [7]
    storage.blocks[5].fill_(float("nan"))
    storage.blocks[2].fill_(float("nan"))
    transfer.start([Transfer(8, False, (1, 5), (0, 3))])
    assert finished_ids(transfer) == [8]
    assert torch.equal(storage.blocks[1], before[5])
    assert torch.equal(storage.blocks[5], before[2])
    assert torch.equal(storage.blocks[0], before[0])


def test_transfers_of_one_plan_run_one_after_another(storage: KvStorage):
    transfer = KvTransfer(storage, host_blocks(storage, 4))
    before = storage.blocks.clone()
    launched = transfer.mark()
    if launched is not None:
        launched.synchronize()  # the first copy waits for its own launch alone
    transfer.start([Transfer(1, True, (0, 1), (3, 2)), Transfer(2, True, (4,), (1,))], launched)
    finished = []
    while len(finished) < 2:
        finished += transfer.take_finished(wait=True)
    assert [(f.transfer_id, f.is_first) for f in finished] == [(1, True), (2, False)]
    assert all(f.seconds is not None and f.seconds > 0 for f in finished)
    transfer.start([Transfer(3, False, (5, 3, 2), (1, 2, 3))])
    assert finished_ids(transfer) == [3]
    assert torch.equal(storage.blocks[[5, 3, 2]], before[[4, 1, 0]])


def test_a_finished_transfer_is_told_once(storage: KvStorage):
    transfer = KvTransfer(storage, host_blocks(storage, 4))
    assert transfer.take_finished(wait=True) == ()
    transfer.start([Transfer(1, True, (0,), (0,))])
    assert finished_ids(transfer) == [1]
    assert transfer.take_finished(wait=True) == ()


def test_compressed_blocks_come_back_within_the_stated_error(storage: KvStorage):
    transfer = KvTransfer(storage, Fp8HostBlocks(storage.layout, 4, pinned=storage.blocks.is_cuda))
    before = storage.blocks.clone()
    transfer.start([Transfer(1, True, (5, 2), (0, 3))])
    assert finished_ids(transfer) == [1]
    transfer.start([Transfer(2, False, (1, 5), (0, 3))])
    assert finished_ids(transfer) == [2]
    for here, was in ((1, 5), (5, 2)):
        error = (storage.blocks[here] - before[was]).abs()
        scale = before[was].abs().amax(-1, keepdim=True) / 448
        assert (error <= torch.maximum(before[was].abs() / 16, scale / 1024) * 1.0001).all()
    assert torch.equal(storage.blocks[0], before[0])


@pytest.mark.gpu
def test_a_transfer_that_waits_for_others_is_launched_meanwhile():
    storage = KvStorage(KvLayout(2, 4, 2, 8, torch.float32), 6, torch.device("cuda"))
    transfer = KvTransfer(storage, host_blocks(storage, 4))
    before, behind = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for busy in (False, True):
        before.record()
        if busy:
            torch.cuda._sleep(10**9)
        behind.record()
        after = transfer.mark()
        if not busy:
            torch.cuda.synchronize()
        transfer.start([Transfer(1, True, (0, 1), (3, 2))], after)
        (finished,) = transfer.take_finished(wait=True)
        assert finished.is_first is not busy
        assert finished.seconds is not None
    waited_s = before.elapsed_time(behind) / 1000
    assert finished.seconds < waited_s / 2, "what it waited for does not count"
