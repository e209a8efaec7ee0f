from __future__ import annotations

import numpy as np
import pytest

from service.core.adapter import AdapterLoad
from service.core.block_moves import BlockCopy, Transfer
from service.core.iteration import GrownTables, IterationPlan, ScheduledDecodes
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.core.training import Arena, TrainingShare


def scheduled(sequence_id: int, token_ids: tuple[int, ...] = (1,)) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, 1 + sequence_id, token_ids, 0, 0, (0,), SamplingParams(max_tokens=1), ())


OUT, IN = Transfer(0, True, (2, 3), (0, 1)), Transfer(1, False, (4, 5), (2, 3))

TRAINING = TrainingShare(1, 4, Arena(1, 3, 4))
"""In blocks 3 to 6."""


def test_a_plan_counts_its_tokens():
    plan = IterationPlan((scheduled(0, (1, 2, 3)), scheduled(1)))
    assert plan.num_scheduled_tokens == 4
    assert not plan.is_empty
    assert IterationPlan(()).is_empty


@pytest.mark.parametrize(
    "make",
    [
        lambda: IterationPlan((scheduled(0), scheduled(0))),
        lambda: IterationPlan((scheduled(0, ()),)),
        lambda: IterationPlan((), (BlockCopy(1, 2), BlockCopy(3, 2))),
        lambda: IterationPlan((), (BlockCopy(1, 2), BlockCopy(2, 3))),
        lambda: IterationPlan((), (BlockCopy(1, 2),), transfers=(OUT,)),
        lambda: IterationPlan((), (BlockCopy(1, 5),), transfers=(IN,)),
        lambda: IterationPlan((), transfers=(IN, Transfer(9, False, (5,), (7,)))),
        lambda: IterationPlan((), transfers=(IN, Transfer(9, True, (5,), (7,)))),
        lambda: IterationPlan((), adapter_loads=(AdapterLoad(1, 7, (2, 3)), AdapterLoad(2, 8, (3, 4)))),
        lambda: IterationPlan((), adapter_loads=(AdapterLoad(1, 7, (2,)), AdapterLoad(1, 8, (3,)))),
        lambda: IterationPlan((), (BlockCopy(1, 5),), adapter_loads=(AdapterLoad(1, 7, (5,)),)),
        lambda: IterationPlan((), transfers=(IN,), adapter_loads=(AdapterLoad(1, 7, (5,)),)),
        lambda: IterationPlan((), training=TrainingShare(1, -1)),
        lambda: IterationPlan((), (BlockCopy(1, 5),), training=TRAINING),
        lambda: IterationPlan((scheduled(0),), training=TrainingShare(1, 1)),
        lambda: IterationPlan((), transfers=(IN,), training=TrainingShare(1, 1)),
    ],
)
def test_a_plan_that_contradicts_itself_cannot_be_made(make):
    with pytest.raises(AssertionError):
        make()


def test_decodes_count_beside_what_is_scheduled_one_by_one():
    ids = np.arange(2)
    decodes = ScheduledDecodes(1, ids, ids + 1, ids, ids + 5, np.ones_like(ids), 2, GrownTables(ids, ids, ids))
    prompt = ScheduledSequence(7, 8, (5, 6, 7), 0, 0, (3,), SamplingParams(9), (Sample(7, 0), Sample(8, 1)))
    plan = IterationPlan((prompt,), decodes=decodes)
    assert (plan.num_sequences, plan.num_scheduled_tokens, plan.num_draws, plan.is_empty) == (3, 5, 4, False)
    assert IterationPlan((), decodes=decodes).computes
    assert not IterationPlan((), transfers=(OUT,)).computes


def test_a_sequence_stands_there_again_for_its_drafts_alone():
    first = scheduled(0)
    first = first._replace(token_ids=(1,), num_computed_tokens=5, samples=(Sample(first.sequence_id, 0),))
    draft = first._replace(token_ids=(2,), num_computed_tokens=6)
    other = first._replace(sequence_id=99, row=9)
    plan = IterationPlan((first, draft, draft._replace(num_computed_tokens=7), other))
    assert (plan.num_sequences, plan.num_drafts, plan.num_draws) == (4, 2, 4)
    assert IterationPlan((first, other)).num_drafts == 0
    for items in (
        (first, other, draft),
        (first, draft._replace(num_computed_tokens=7)),
        (first, draft._replace(token_ids=(2, 3))),
        (first, draft._replace(samples=())),
    ):
        with pytest.raises(AssertionError):
            IterationPlan(items)


def test_sequences_that_share_a_block_may_leave_together_while_others_read_it():
    beside = Transfer(2, True, (2, 6), (4, 5))
    assert IterationPlan((scheduled(0),), (BlockCopy(2, 7),), transfers=(OUT, IN, beside)).transfers[2] == beside


def test_a_plan_of_training_alone_computes_no_request_and_is_not_empty():
    plan = IterationPlan((), training=TrainingShare(1, 4))
    assert (plan.is_empty, plan.computes, plan.num_sequences) == (False, False, 0)


def test_who_is_in_a_trainings_way_leaves_in_the_plan_that_trains_there():
    assert IterationPlan((), (BlockCopy(4, 2),), training=TRAINING).copies == (BlockCopy(4, 2),)
