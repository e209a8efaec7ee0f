from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from service.runner import staging
from service.runner.pinned_memory import PinnedPart
from service.runner.staging import StagingTurns
from service.runner.step import PendingTokenIds
from tests.examples import examples

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class LateDevice:
    """In place of a GPU: what it is given to do waits until somebody waits for a moment behind it."""

    def __init__(self):
        self.work = []
        self.num_done = 0

    def launch(self, work):
        self.work.append(work)
        return len(self.work)

    def run_until(self, number):
        while self.num_done < number:
            self.work[self.num_done]()
            self.num_done += 1


class Moment:
    """In place of a CUDA event. Its time is the number of things done before it."""

    device: LateDevice

    def __init__(self, *, enable_timing, blocking=False):
        self.number = None

    def record(self, stream):
        self.number = self.device.launch(lambda: None)

    def query(self):
        return self.device.num_done >= self.number

    def synchronize(self):
        self.device.run_until(self.number)

    def elapsed_time(self, end):
        return 1000.0 * (end.number - self.number)


class IdsOfLateDevice:
    """[N] int64 there, whose copies run when its work does."""

    is_cuda = True

    def __init__(self, device, values):
        self.device, self.values = device, values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, part):
        return IdsOfLateDevice(self.device, self.values[part])


class LateMemory(torch.Tensor):
    """Pinned memory that the device fills when it comes to the copy."""

    def copy_(self, ids, *, non_blocking):
        assert non_blocking
        array = self.numpy()
        ids.device.launch(lambda: array.__setitem__(slice(None), ids.values))


def late_memory(num, dtype):
    return PinnedPart(torch.zeros(num, dtype=dtype).as_subclass(LateMemory))


@pytest.fixture
def late(monkeypatch):
    device = LateDevice()
    monkeypatch.setattr(Moment, "device", device, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Moment)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(staging, "pinned", late_memory)
    return device


@pytest.mark.parametrize("seed", range(examples(10)))
def test_no_memory_is_written_again_before_its_copies_have_run(seed, late):
    """Whatever is launched, waited for in any order, dropped or left half-way."""
    chance, turns = random.Random(seed), StagingTurns(torch.device("cuda"))
    under_way, arrived = [], []
    for number in range(1, 300):
        turn = turns.take()
        for _ in range(chance.choice([1, 1, 2])):
            array = turn.inputs(num_bytes := chance.choice([8, 16, 1 << 19])).array[:num_bytes]
            array[:] = number % 251
            late.launch(lambda array=array, number=number: arrived.append((array == number % 251).all()))
        if chance.random() < 0.1:
            continue  # the launch has failed
        turn.begins()
        num_drawn = chance.choice([0, 1, 5, 40_000])
        ids = PendingTokenIds(IdsOfLateDevice(late, np.full(max(1, num_drawn), number)), num_drawn, turn)
        assert not ids.is_done()
        under_way.append((ids, (number,) * num_drawn))
        while len(under_way) > chance.choice([0, 1, 1, 1, 6]):
            ids, expected = under_way.pop(chance.choice([0, 0, -1]))
            if chance.random() < 0.1:
                continue  # nobody asks for them
            assert ids.wait() == expected == ids.wait()
            assert ids.is_done()
            assert ids.compute_s == (2 if expected else 1)
    late.run_until(len(late.work))
    assert len(arrived) > 299
    assert all(arrived)


def test_two_iterations_under_way_need_two_turns(late):
    turns, made = StagingTurns(torch.device("cuda")), set()
    waiting = []
    for _ in range(20):
        turn = turns.take()
        made.add(id(turn))
        turn.begins()
        waiting.append((turn, PendingTokenIds(IdsOfLateDevice(late, np.ones(3)), 3, turn)))
        if len(waiting) > 1:
            waiting.pop(0)[1].wait()
    assert len(made) == 2


def test_a_fault_of_the_device_keeps_the_turn(late, monkeypatch):
    turns = StagingTurns(torch.device("cuda"))
    turn = turns.take()
    turn.begins()
    ids = PendingTokenIds(IdsOfLateDevice(late, np.ones(3)), 3, turn)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="illegal"):
        patch.setattr(late, "run_until", lambda number: (_ for _ in ()).throw(RuntimeError("illegal")))
        ids.wait()
    assert turns.take() is not turn


@pytest.mark.parametrize("device", DEVICES)
def test_ids_come_back(device):
    turns = StagingTurns(torch.device(device)) if device == "cuda" else None
    ids = torch.tensor([3, -1, 2**40], device=device)
    all_of_them, some, none = (turns and turns.take() for _ in range(3))
    for turn in (all_of_them, some, none):
        turn and turn.begins()
    under_way = [PendingTokenIds(ids, num, turn) for num, turn in ((3, all_of_them), (1, some), (0, none))]
    ids.fill_(0) if device == "cuda" else None  # behind the copies
    assert [one.wait() for one in under_way] == [(3, -1, 2**40), (3,), ()]
    assert all(one.is_done() for one in under_way)


@pytest.mark.gpu
def test_a_turn_is_not_reused_before_its_copies_ran():
    turns = StagingTurns(torch.device("cuda"))
    there = []
    torch.cuda._sleep(10**8)  # the copies have to wait behind this
    for number in range(50):
        staged = turns.take().inputs(1000)
        staged.array[:] = number
        there.append(staged.tensor[:1000].to("cuda", non_blocking=True))
    assert [(int(x.min()), int(x.max())) for x in there] == [(i, i) for i in range(50)]


@pytest.mark.gpu
def test_the_seconds_are_the_devices_and_from_the_moment_noted_last():
    turns = StagingTurns(torch.device("cuda"))
    before, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    ids = torch.zeros(3, dtype=torch.int64, device="cuda")
    for _ in range(3):  # the same turn
        turn = turns.take()
        before.record()
        turn.begins()
        torch.cuda._sleep(10**9)  # part of no step
        turn.begins()
        torch.cuda._sleep(10**6)
        under_way = PendingTokenIds(ids, 3, turn)
        end.record()
        under_way.wait()
        end.synchronize()
        assert 0 < under_way.compute_s < before.elapsed_time(end) / 2000
