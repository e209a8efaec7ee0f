from __future__ import annotations

import pytest

from service.core.iteration_plan import (
    PENDING_TOKEN_ID,
    BlockCopy,
    IterationPlan,
    LockstepShares,
    MixedShares,
    Sample,
    ScheduledSequence,
    SharesGoingOn,
    Transfer,
)
from service.core.sampling_params import SamplingParams


def scheduled(sequence_id: int, token_ids: tuple[int, ...] = (1,)) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, token_ids, 0, 0, (0,), SamplingParams(max_tokens=1), ())


OUT, IN = Transfer(0, True, (2, 3), (0, 1)), Transfer(1, False, (4, 5), (2, 3))


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
    ],
)
def test_a_plan_that_contradicts_itself_cannot_be_made(make):
    with pytest.raises(AssertionError):
        make()


def test_shares_that_go_on_are_those_before_one_token_further():
    params = SamplingParams(max_tokens=9)
    first = [ScheduledSequence(i, (5,), 3 + i, 0, (i,), params, (Sample(i, i),)) for i in range(3)]
    shares = SharesGoingOn(first, 5, {1: (2, (7,))})
    pending = (PENDING_TOKEN_ID,)
    expected = (
        ScheduledSequence(0, pending, 8, 0, (), params, (Sample(0, 0),)),
        ScheduledSequence(1, pending, 9, 2, (7,), params, (Sample(1, 1),)),
        ScheduledSequence(2, pending, 10, 0, (), params, (Sample(2, 2),)),
    )
    assert tuple(shares) == shares[:] == expected
    assert (shares[-2], shares[1:], shares[3:]) == (expected[1], expected[1:], ())
    with pytest.raises(IndexError):
        shares[3]
    plan = IterationPlan(shares)
    assert (shares.starts, shares.num_computed_tokens) == ([8, 9, 10], 27)
    assert (plan.num_scheduled_tokens, plan.num_draws, IterationPlan(expected).num_draws) == (3, 3, 3)
    assert (plan.in_lockstep, plan.apart) == (shares, ())
    assert (len(IterationPlan(expected).in_lockstep), IterationPlan(expected).apart) == (0, expected)


def test_shares_in_lockstep_stand_before_the_others():
    params = SamplingParams(max_tokens=9)
    first = [ScheduledSequence(i, (5,), -2, 1, (), params, (Sample(i, i),)) for i in range(2)]
    prompt, decode = (5, 6, 7), (5,)
    others = (
        ScheduledSequence(7, prompt, 0, 0, (3,), params, ()),
        ScheduledSequence(8, decode, 4, 0, (4,), params, ()),
    )
    in_lockstep = LockstepShares(first, 5, {})
    plan = IterationPlan(MixedShares(in_lockstep, others))
    assert tuple(plan.scheduled) == (*in_lockstep, *others)
    assert (len(plan.scheduled), plan.scheduled[1], plan.scheduled[-1]) == (4, in_lockstep[1], others[1])
    assert (plan.in_lockstep, plan.apart) == (in_lockstep, others)
    assert (plan.num_scheduled_tokens, plan.num_draws, plan.is_empty) == (6, 2, False)
    assert IterationPlan(MixedShares(LockstepShares((), 5, {}), ())).is_empty
    going_on = in_lockstep.going_on()
    assert isinstance(going_on, SharesGoingOn)
    assert (tuple(going_on), going_on.num_computed_tokens) == (tuple(in_lockstep), in_lockstep.num_computed_tokens)


def test_sequences_that_share_a_block_may_leave_together_while_others_read_it():
    beside = Transfer(2, True, (2, 6), (4, 5))
    assert IterationPlan((scheduled(0),), (BlockCopy(2, 7),), transfers=(OUT, IN, beside)).transfers[2] == beside
