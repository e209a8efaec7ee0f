from __future__ import annotations

import time

import pytest
import torch

from service.core.block_moves import BlockCopy
from service.core.iteration import IterationPlan
from service.core.training import Arena, StepReport, TrainingNews, TrainingOutcome, TrainingShare
from service.runner.host_blocks import PlainHostBlocks
from service.runner.kv_storage import KvLayout, KvStorage
from service.runner.kv_transfer import KvTransfer
from service.runner.trainings import Trainings
from tests.models.checkpoints import llama
from tests.runner.loading import load

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class SlowTraining:
    """Two iterations of three layer steps of 2 ms on the host. Notes whether it was called in inference mode."""

    num_arena_bytes = 0
    layer_steps_per_iteration = 3

    def __init__(self, training_id: int = 1, fails_in: str = "") -> None:
        self.training_id = training_id
        self.fails_in = fails_in
        self.num_done = 0
        self.modes: set[bool] = set()
        self._told = 0

    @property
    def is_over(self) -> bool:
        return self.num_done == 6

    @property
    def layer_steps_left(self) -> int:
        return 0 if self.is_over else 3 - self.num_done % 3

    def use_memory(self, memory: object) -> None:
        pass

    def _called(self, name: str) -> None:
        self.modes.add(torch.is_inference_mode_enabled())
        if self.fails_in == name:
            raise FloatingPointError(name)

    def advance(self, num_layer_steps: int) -> int:
        num_steps = min(num_layer_steps, 6 - self.num_done)
        time.sleep(0.002 * num_steps)
        self.num_done += num_steps
        self._called("advance")
        return num_steps

    def take_waited_s(self) -> float:
        return 0.0

    def take_news(self) -> TrainingNews:
        self._called("take_news")
        told, self._told = self._told, self.num_done // 3
        return TrainingNews(tuple(StepReport(step + 1, 1.0, 0.5, 8, 1e-3, 1.0) for step in range(told, self._told)))

    def state(self) -> object:
        self._called("state")
        return self.num_done


@pytest.fixture(params=DEVICES)
def trainings(request: pytest.FixtureRequest) -> Trainings:
    device = torch.device(request.param)
    storage = KvStorage(KvLayout(2, 4, 2, 8, torch.float32), 6, device)
    return Trainings(storage, KvTransfer(storage, PlainHostBlocks(storage.layout, 0, pinned=False)))


def outcome_of(trainings: Trainings, num_layer_steps: int, training_id: int = 1) -> TrainingOutcome:
    launched = trainings.advance(TrainingShare(training_id, num_layer_steps))
    result = launched.wait()
    assert launched.is_done()
    assert result.training is not None
    assert (result.token_ids, result.finished_transfers) == ((), ())
    return result.training


def test_a_share_is_run_in_inference_mode_and_told(trainings: Trainings):
    training = SlowTraining()
    trainings.add_training(training)
    first, second = outcome_of(trainings, 2), outcome_of(trainings, 2)
    assert (first.num_layer_steps, first.layer_steps_left, first.news.reports) == (2, 1, ())
    assert (second.num_layer_steps, second.layer_steps_left) == (2, 2)
    assert [report.step for report in second.news.reports] == [1]
    assert trainings.training_state(1) == 4
    assert training.modes == {True}


def test_its_seconds_are_those_of_its_layer_steps(trainings: Trainings):
    trainings.add_training(SlowTraining())
    assert outcome_of(trainings, 3).seconds >= (0.006 if not trainings._is_gpu else 0.0)


def test_at_the_end_fewer_steps_are_run(trainings: Trainings):
    trainings.add_training(SlowTraining())
    outcome_of(trainings, 4)
    last = outcome_of(trainings, 4)
    assert (last.num_layer_steps, last.layer_steps_left, last.is_over, last.fault) == (2, 0, True, None)


@pytest.mark.parametrize("where", ["advance", "take_news"])
def test_a_fault_is_told_once_and_no_more_steps_are_run(trainings: Trainings, where: str):
    training = SlowTraining(fails_in=where)
    trainings.add_training(training)
    assert str(outcome_of(trainings, 1).fault) == where
    again = outcome_of(trainings, 1)
    assert (again.num_layer_steps, again.fault, training.num_done) == (0, None, 1)
    trainings.remove_training(1)
    training.fails_in = ""
    trainings.add_training(training)
    assert outcome_of(trainings, 1).num_layer_steps == 1, "started anew"


def test_a_training_that_is_not_there_has_no_steps(trainings: Trainings):
    trainings.remove_training(5)
    assert outcome_of(trainings, 3, training_id=5).num_layer_steps == 0


def test_of_two_each_gets_its_own_shares(trainings: Trainings):
    first, second = SlowTraining(1), SlowTraining(2)
    trainings.add_training(first)
    trainings.add_training(second)
    outcome_of(trainings, 2, training_id=2)
    assert (first.num_done, second.num_done) == (0, 2)


class Remembering(SlowTraining):
    """Every layer step counts up what is in its memory."""

    num_arena_bytes = 1000

    def __init__(self) -> None:
        super().__init__()
        self.memories: list[torch.Tensor | None] = []

    def use_memory(self, memory: torch.Tensor | None) -> None:
        self.memories.append(memory)

    def advance(self, num_layer_steps: int) -> int:
        memory = self.memories[-1]
        assert memory is not None and memory.shape == (1000,)
        memory += 1
        return super().advance(num_layer_steps)


def test_its_memory_lies_in_the_blocks_of_its_arena_and_is_told_once_a_loan(trainings: Trainings):
    training, blocks = Remembering(), trainings._storage.blocks
    num_blocks = trainings.add_training(training)
    assert (num_blocks - 1) * trainings._storage.layout.block_bytes < 1000 <= num_blocks * blocks[0].nbytes
    arenas = [Arena(1, 0, num_blocks), Arena(1, 0, num_blocks), Arena(2, 0, num_blocks), Arena(3, 4, num_blocks)]
    for arena in arenas:
        result = trainings.advance(TrainingShare(1, 1, arena)).wait()
        assert result.training is not None and result.training.fault is None
    assert len(training.memories) == 3
    as_bytes = blocks.view(torch.uint8).view(len(blocks), -1)
    assert int(as_bytes[:num_blocks].sum()) == 3000 and int(as_bytes[4:].sum()) == 1000
    trainings.remove_training(1)
    assert training.memories[-1] is None, "others have it from now on"


def test_the_runner_makes_room_by_copies_before_it_trains(tmp_path):
    class Looking(SlowTraining):
        def advance(self, num_layer_steps: int) -> int:
            assert torch.equal(blocks[3], blocks[1])
            return super().advance(num_layer_steps)

    runner = load(llama(tmp_path)).runner
    blocks = runner.storage.blocks
    blocks[1].fill_(7.0)
    runner.trainings.add_training(Looking())
    result = runner.launch(IterationPlan((), (BlockCopy(1, 3),), training=TrainingShare(1, 2))).wait()
    assert result.training is not None
    assert (result.training.num_layer_steps, result.training.fault, result.compute_s) == (2, None, None)
