from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from service.config import CacheConfig
from service.core.iteration_plan import NO_DECODES, IterationPlan, Sample, ScheduledDecodes, ScheduledSequence
from service.core.iteration_result import INVALID_TOKEN_ID
from service.core.sampling_params import SamplingParams
from service.layers.pipeline_stage import PlannedStage
from service.runner.load import load_executor
from service.runner.model_runner import ModelRunner
from tests.models.checkpoints import llama
from tests.runner.loading import source

GREEDY = SamplingParams(max_tokens=5, temperature=0.0)


class Queued(PlannedStage):
    """Stages of one process, in the order of their calls."""

    def __init__(self, index: int, between: deque[Tensor]) -> None:
        super().__init__(2)
        self.index = index
        self._between = between

    def receive(self, into: Tensor) -> None:
        into.copy_(self._between.popleft() if self._between else torch.zeros(into.shape))

    def send(self, hidden: Tensor) -> None:
        self._between.append(hidden)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("model"))


def loaded_as(folder: Path, stage: PlannedStage | None) -> ModelRunner:
    how = {} if stage is None else {"stage": stage}
    return load_executor(source(folder), folder, CacheConfig(8, 0.5, 1 << 20), 4, 64, **how).runner


def prompt(row: int, *token_ids: int) -> ScheduledSequence:
    return ScheduledSequence(row, row, token_ids, 0, 0, (row,), GREEDY, (Sample(row, 0),))


def decode_of(row: int, position: int) -> ScheduledDecodes:
    one = [np.array([value], np.int64) for value in (row, row, 0, position, 1)]
    return ScheduledDecodes(1, *one, 1, NO_DECODES.grown)


@pytest.fixture(scope="module")
def stages(folder: Path) -> tuple[ModelRunner, ModelRunner, deque[Tensor]]:
    between = deque[Tensor]()
    first, last = (loaded_as(folder, Queued(index, between)) for index in range(2))
    between.clear()  # of the start: each stage warms up by itself here
    return first, last, between


def test_each_step_is_handed_over_once_and_drawn_by_the_last_stage_alone(folder: Path, stages):
    first, last, between = stages
    whole = loaded_as(folder, None)
    plan = IterationPlan((prompt(1, 5, 6, 7), prompt(2, 9)))
    assert first.launch(plan).wait().token_ids == ()
    (hidden,) = between
    assert hidden.shape == (4, 64)
    drawn = last.launch(plan).wait().token_ids
    assert drawn == whole.launch(plan).wait().token_ids
    assert not between

    first.note_drawn(np.array([1, 2]), np.array(drawn))
    going_on = IterationPlan((), decodes=decode_of(1, 3))
    first.launch(going_on).wait()
    assert last.launch(going_on).wait().token_ids == whole.launch(going_on).wait().token_ids


def test_a_step_that_fails_on_a_stage_is_handed_over_all_the_same_and_nothing_can_be_drawn_of_it(
    stages, monkeypatch: pytest.MonkeyPatch
):
    first, last, between = stages
    plan = IterationPlan((prompt(3, 8, 9),))
    with monkeypatch.context() as patch:
        patch.setattr(first._forward_pass, "of_all_tokens", lambda *step: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            first.launch(plan)
    assert [hidden.isnan().all() for hidden in between] == [True]
    assert last.launch(plan).wait().token_ids == (INVALID_TOKEN_ID,)
    first.launch(plan).wait()
    assert last.launch(plan).wait().token_ids != (INVALID_TOKEN_ID,)


def test_the_last_stage_takes_what_is_handed_over_also_where_its_own_step_fails(
    stages, monkeypatch: pytest.MonkeyPatch
):
    first, last, between = stages
    plan = IterationPlan((prompt(3, 8, 9),))
    first.launch(plan).wait()
    with monkeypatch.context() as patch:
        patch.setattr(last._forward_pass, "of_logit_rows", lambda *step: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            last.launch(plan)
    assert not between
