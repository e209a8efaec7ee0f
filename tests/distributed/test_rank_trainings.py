"""Trainings come to ranks and go again, and what fails there alone ends the rank."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from service.core.iteration import IterationPlan, IterationResult
from service.core.training import TrainingOutcome, TrainingShare
from service.distributed.plan_follower import RankUseless
from service.distributed.rank_trainings import RankTrainings, SharedTrainings, StagedTrainings
from service.errors import InvalidRequest
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.shared_training import TrainingTask
from service.finetune.training_state import ParameterLayout, TrainingState
from tests.distributed.held_adapters import Held
from tests.finetune.served import random_examples

SHARE = IterationPlan((), training=TrainingShare(3, 2))


class Named:
    """A training."""

    def __init__(self, training_id: int) -> None:
        self.training_id = training_id


class Lines:
    """An AdapterSharing."""

    def __init__(self) -> None:
        self.shared: list[int] = []
        self.dropped: list[int] = []

    def share(self, adapter_id: int, write: Callable[[BinaryIO], None]) -> None:
        self.shared.append(adapter_id)

    def drop(self, adapter_id: int) -> None:
        self.dropped.append(adapter_id)


class Rank:
    """An Executor and a TrainingExecutor; a share comes to `fault`."""

    def __init__(self) -> None:
        self.live: list[int] = []
        self.fault: Exception | None = None
        self.noted: list[tuple[float, Exception | None]] = []
        self.trainings = self.end(is_stage=False)

    def end(self, *, is_stage: bool) -> RankTrainings:
        def note(seconds: float, fault: Exception | None) -> None:
            self.noted.append((seconds, fault))

        return RankTrainings(Held(), self, self, lambda file: Named(int(file.read_text())), note, is_stage=is_stage)

    def add_training(self, training: Named) -> int:
        self.live.append(training.training_id)
        return 0

    def remove_training(self, training_id: int) -> None:
        if training_id in self.live:
            self.live.remove(training_id)

    def training_state(self, training_id: int) -> object:
        raise AssertionError("rank 0's is told")

    def launch(self, plan: IterationPlan) -> Rank:
        return self

    def is_done(self) -> bool:
        return True

    def wait(self) -> IterationResult:
        return IterationResult((), training=TrainingOutcome(3, 2, 0.25, 0, fault=self.fault))


def test_a_training_is_shared_by_an_id_of_no_adapter_and_dropped_once_nobody_has_it():
    lines = Lines()
    chosen, layout = Hyperparameters(0.1), ParameterLayout({}, 4)
    task = TrainingTask(
        3, chosen, TrainingState(layout, *[None] * 3, 0, 0, 0), random_examples(1, 9, 5), (), 1, 9, False
    )
    training = Named(3)
    SharedTrainings(lines).share(training, task)
    assert (lines.shared, lines.dropped) == ([-3], [])
    del training
    gc.collect()
    assert lines.dropped == [-3]


def test_it_is_there_from_its_first_share_until_it_is_dropped(tmp_path: Path):
    rank, file = Rank(), tmp_path / "file"
    file.write_text("3")
    rank.trainings.take(-3, file)
    rank.trainings.take(3, file)
    assert rank.trainings.num_taken == 1, "an adapter of the same number is another thing"
    rank.trainings.launch(IterationPlan(()))
    assert rank.live == []
    for _ in range(2):
        rank.trainings.launch(SHARE).wait()
        assert rank.live == [3]
    rank.trainings.drop(3)
    assert rank.live == [3] and rank.trainings.num_taken == 0
    rank.trainings.drop(-3)
    assert rank.live == []
    rank.trainings.take(-3, file)
    rank.trainings.drop(-3)
    rank.trainings.launch(SHARE)
    assert rank.live == [], "dropped before its first share"


def test_what_is_refused_everywhere_is_no_rank_s_fault_and_anything_else_ends_it():
    rank = Rank()
    rank.fault = InvalidRequest("a token that the model has not")
    rank.trainings.launch(SHARE).wait()
    rank.fault = MemoryError("none left")
    with pytest.raises(RankUseless, match="MemoryError: none left"):
        rank.trainings.launch(SHARE).wait()


def test_what_fails_on_a_stage_ends_the_training_and_not_the_rank():
    rank = Rank()
    stage = rank.end(is_stage=True)
    faults = None, MemoryError("none left"), InvalidRequest("a token that the model has not")
    for rank.fault in faults:
        stage.launch(SHARE).wait()
    assert rank.noted == [(0.25, None), (0.25, faults[1]), (0.25, None)], "rank 0 has refused it as well"


class Asked:
    """Rank 0's own part, and an Executor of plans on all ranks."""

    def __init__(self) -> None:
        self.plans: list[IterationPlan] = []
        self.fault: Exception | None = None

    def training_state(self, training_id: int) -> object:
        return training_id, len(self.plans)

    def launch(self, plan: IterationPlan) -> Asked:
        self.plans.append(plan)
        return self

    def wait(self) -> IterationResult:
        return IterationResult((), training=TrainingOutcome(3, 0, 0.0, 5, fault=self.fault))


def test_of_stages_the_state_is_gathered_by_a_plan_before_it_is_told():
    asked = Asked()
    trainings = StagedTrainings(asked, asked)
    assert trainings.training_state(3) == (3, 1)
    assert asked.plans == [IterationPlan((), training=TrainingShare(3, 0))]
    asked.fault = MemoryError("none left")
    with pytest.raises(MemoryError):
        trainings.training_state(3)
