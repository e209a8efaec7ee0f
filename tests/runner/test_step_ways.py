from __future__ import annotations

import torch

from service.core.iteration_plan import IterationPlan, Past, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.sequence_rows import SequenceRows
from service.runner.staging import StagingTurns
from service.runner.step_ways import Step
from tests.structured.masks import FixedMasks


def step(*scheduled, masks=None):
    turn = StagingTurns(torch.device("cpu")).take()
    return Step(IterationPlan(scheduled, masks=masks), turn, SequenceRows(4, 8), 4)


def item(row, targets=(), **sampling):
    params = SamplingParams(max_tokens=9, **sampling)
    return ScheduledSequence(row, row, (5, 6), 0, 0, (1,), params, (Sample(row, 0),), Past((), 2), targets)


def test_a_step_is_plain_if_no_draw_asks_for_more_and_none_is_masked():
    assert step(item(1), item(2, top_k=3)).is_plain
    assert not step(item(1), item(2, min_p=0.1)).is_plain
    assert not step(item(1), masks=FixedMasks([0], [[5]], 40)).is_plain


def test_a_prompts_logprobs_are_targets():
    assert not step(item(1, num_prompt_logprobs=1)).has_targets
    assert step(item(1), item(2, (6,), num_prompt_logprobs=1)).has_targets


def test_what_a_plan_was_turned_into_is_kept():
    one = step(item(1))
    assert one.columns is one.columns
    assert one.batch is one.batch
    assert one.batch.tokens["token_ids"].tolist() == [5, 6]
