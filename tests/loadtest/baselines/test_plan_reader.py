from __future__ import annotations

import numpy as np
import pytest

from loadtest.baselines.plan_reader import PlanReader
from service.core.iteration import GrownTables, IterationPlan, ScheduledDecodes
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import PENDING_TOKEN_ID, Sample, ScheduledSequence

PARAMS = (SamplingParams(4, top_k=3), SamplingParams(4))


def prompts() -> IterationPlan:
    draws = [(Sample(5 + i, 70 + i),) for i in range(2)]
    return IterationPlan(
        tuple(ScheduledSequence(5 + i, 1 + i, (8, 9), 0, 0, (i,), PARAMS[i], draws[i]) for i in range(2))
    )


def decodes(*places: int) -> ScheduledDecodes:
    """The second token of both; those at `places` get block 30, 31, ... at index 1, 2, ..."""
    ids, counted = np.array([5, 6]), np.arange(len(places))
    grown = GrownTables(np.array(places, np.int64), 1 + counted, 30 + counted)
    return ScheduledDecodes(1, ids, ids - 4, ids + 65, np.array([2, 2]), np.array([1, 1]), 2, grown)


def test_what_is_told_once_is_remembered_and_decodes_stand_before_the_others():
    reader = PlanReader()
    assert reader.expand(prompts()) == prompts()
    other = ScheduledSequence(9, 3, (1,), 0, 0, (7,), PARAMS[1], ())
    plan = reader.expand(IterationPlan((other,), decodes=decodes(1, 1)))
    pending = (PENDING_TOKEN_ID,)
    assert plan.scheduled == (
        ScheduledSequence(5, 1, pending, 2, 0, (), PARAMS[0], (Sample(5, 70),)),
        ScheduledSequence(6, 2, pending, 2, 1, (30, 31), PARAMS[1], (Sample(6, 71),)),
        other,
    )
    assert len(plan.decodes) == 0


def test_a_decode_that_was_never_scheduled_by_itself_is_a_fault():
    with pytest.raises(LookupError):
        PlanReader().expand(IterationPlan((), decodes=decodes()))
