from __future__ import annotations

import pytest

from service.core.iteration_plan import BlockCopy, IterationPlan, ScheduledSequence
from service.core.sampling_params import SamplingParams


def scheduled(sequence_id: int, token_ids: tuple[int, ...] = (1,)) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, token_ids, 0, 0, (0,), SamplingParams(max_tokens=1), ())


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
    ],
)
def test_a_plan_that_contradicts_itself_cannot_be_made(make):
    with pytest.raises(AssertionError):
        make()
