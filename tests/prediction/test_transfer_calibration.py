from __future__ import annotations

import pytest

from service.core.block_moves import FinishedTransfer
from service.core.clock import MonotonicClock
from service.core.iteration import IterationPlan, IterationResult
from service.prediction.swap_time import Copies, SwapTime
from service.prediction.transfer_calibration import calibrate_transfers
from tests.manual_clock import ManualClock
from tests.models.checkpoints import llama
from tests.runner.loading import load

BLOCK_S, BEGIN_S, STEP_S = 2e-4, 5e-5, 3e-3


class Device:
    """Takes `share` of its copies' seconds longer for an iteration; tells of them when asked again."""

    def __init__(self, share: float) -> None:
        self.clock = ManualClock()
        self.alive = set[int]()
        self.told: tuple[FinishedTransfer, ...] = ()
        self._share = share

    def execute(self, plan: IterationPlan) -> IterationResult:
        self.alive -= set(plan.released)
        self.alive.update(item.row for item in plan.scheduled)
        finished, self.told = self.told, ()
        for number, transfer in enumerate(plan.transfers):
            assert len(set(transfer.device_blocks)) == len(set(transfer.host_blocks)) == len(transfer.host_blocks)
            seconds = BEGIN_S * (number == 0) + BLOCK_S * len(transfer.device_blocks)
            self.clock.advance(self._share * seconds)
            self.told += (FinishedTransfer(transfer.transfer_id, seconds, number == 0),)
        self.clock.advance(STEP_S if plan.scheduled else 0.0)
        return IterationResult((0,) * len(plan.scheduled), finished)


def calibrated(device: Device, num_blocks: int = 200, num_host_blocks: int = 100) -> SwapTime:
    swap_time = SwapTime()
    calibrate_transfers(device.execute, swap_time, device.clock, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
    return swap_time


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_what_transfers_take_and_what_they_add_is_known_and_nothing_is_left_behind(share: float):
    device = Device(share)
    swap_time = calibrated(device)
    assert swap_time.there_and_back_s(30) == pytest.approx(2 * (BEGIN_S + 30 * BLOCK_S), rel=1e-3)
    assert swap_time.added_share == pytest.approx(share, abs=1e-6)
    assert not device.alive


@pytest.mark.parametrize("num_host_blocks", [0, 1])
def test_without_room_for_two_nothing_is_learnt(num_host_blocks: int):
    swap_time = calibrated(Device(0.0), num_host_blocks=num_host_blocks)
    assert swap_time.there_and_back_s(1) is None
    assert swap_time.added_share == 1.0


def test_few_blocks_are_enough():
    assert calibrated(Device(0.5), 3, 2).there_and_back_s(1) == pytest.approx(2 * (BEGIN_S + BLOCK_S), rel=1e-3)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_real_executors_transfers_are_timed(device, tmp_path):
    loaded = load(llama(tmp_path), swap_bytes=1 << 20, device=device)
    swap_time = SwapTime()
    calibrate_transfers(
        lambda plan: loaded.runner.launch(plan).wait(),
        swap_time,
        MonotonicClock(),
        num_blocks=loaded.num_blocks,
        num_host_blocks=loaded.num_host_blocks,
    )
    for to_host in (True, False):
        assert (swap_time.predicted_s(Copies(to_host, 1)) or 0.0) > 0
    assert 0 <= swap_time.added_share <= 1
