from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import SequenceGroup
from service.scheduler.fair_queue import FairQueue, by_priority, fair_priority, mean_priority

ARRIVAL_S = 1e6  # as of a clock that began when the machine did

members = st.tuples(st.integers(1, 5), st.sampled_from((0.0, 0.25, 1.5, 7.0)))
"""(length, arrival)."""


def make_group(order: int, length: int, arrival_s: float, n: int = 1) -> SequenceGroup:
    return SequenceGroup(Request(str(order), (1,) * length, SamplingParams(max_tokens=1, n=n), arrival_s), order)


def priority(group: SequenceGroup, now_s: float) -> float:
    return fair_priority(len(group.leader.token_ids), group.request.arrival_s, now_s)


def test_priority_is_time_since_arrival_per_token():
    assert fair_priority(10, 2.0, 7.0) == pytest.approx(0.5)


@given(st.lists(members), st.sets(st.integers(0, 20)))
def test_order_and_mean_are_those_of_all_members_looked_at_one_by_one(drawn: list[tuple[int, float]], gone: set[int]):
    queues, now_s = [FairQueue(), FairQueue()], ARRIVAL_S + 8.0
    groups = [make_group(order, length, ARRIVAL_S + late_s) for order, (length, late_s) in enumerate(drawn)]
    for group in reversed(groups):
        queues[group.arrival_order % 3 % 2].add(group)
    for group in groups:
        if group.arrival_order in gone:
            queues[group.arrival_order % 3 % 2].remove(group)
    left = [group for group in groups if group.arrival_order not in gone]
    assert sum(map(len, queues)) == len(left)
    assert list(by_priority(queues, now_s)) == sorted(left, key=lambda group: -priority(group, now_s))
    if left:
        mean = fmean(priority(group, now_s) for group in left)
        assert mean_priority(queues, now_s) == pytest.approx(mean, abs=1e-6)


def test_an_empty_queue_is_below_any():
    queue = FairQueue()
    queue.add(make_group(0, 10**6, 5.0))
    assert mean_priority([FairQueue()], 5.0) < mean_priority([queue], 5.0)


def test_who_was_given_may_leave_before_the_next_is_asked_for():
    queue = FairQueue()
    groups = [make_group(order, length, 0.0) for order, length in enumerate((2, 2, 2, 3, 3))]
    for group in groups:
        queue.add(group)
    given_ = []
    for group in by_priority([queue], 1.0):
        queue.remove(group)
        given_.append(group)
    assert given_ == groups
    assert len(queue) == 0
    assert queue.total_priority(5.0) == 0.0


def test_the_longest_choice_counts_and_as_long_as_it_was_when_the_wait_began():
    queue, group = FairQueue(), make_group(0, 2, 0.0, n=2)
    group.live[1].token_ids.extend((1, 1))
    queue.add(group)
    assert queue.total_priority(8.0) == pytest.approx(2.0)
    group.live.pop()
    assert queue.total_priority(8.0) == pytest.approx(2.0)
    queue.remove(group)
    assert list(by_priority([queue], 8.0)) == []
