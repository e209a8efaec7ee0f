from __future__ import annotations

from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import GroupStatus, SequenceGroup
from service.scheduler.request_pool import RequestPool


def make_group(name: str, n: int = 1, first_sequence_id: int = 0) -> SequenceGroup:
    return SequenceGroup(Request(name, (1, 2), SamplingParams(max_tokens=1, n=n), 0.0), first_sequence_id)


def test_starting_and_pausing_keep_the_order_of_arrival():
    pool = RequestPool()
    a, b, c = (make_group(name, first_sequence_id=i) for i, name in enumerate("abc"))
    for group in (a, b, c):
        pool.add(group)
    pool.start(b)
    pool.start(a)
    assert (pool.running, pool.waiting) == ([b, a], [c])
    pool.pause(b)
    assert (pool.running, pool.waiting) == ([a], [b, c])
    assert (a.status, b.status) == (GroupStatus.RUNNING, GroupStatus.WAITING)


def test_an_ended_group_is_nowhere():
    pool = RequestPool()
    group = make_group("a", n=2)
    pool.add(group)
    pool.start(group)
    for sequence in list(group.live):
        pool.remove_sequence(group, sequence)
    pool.remove(group)
    assert len(pool) == 0
    assert pool.get("a") is None
    assert pool.member(0) is None
    assert pool.member(1) is None
    assert pool.running == []
    assert group.status is GroupStatus.ENDED


def test_members_are_found_by_sequence_id():
    pool = RequestPool()
    group = make_group("a", n=2, first_sequence_id=5)
    pool.add(group)
    assert pool.member(6) == (group, group.sequences[1])


def test_whoever_pauses_stands_between_those_that_came_before_and_after():
    pool = RequestPool()
    groups = [make_group(name, first_sequence_id=i) for i, name in enumerate("abcde")]
    for group in groups:
        pool.add(group)
        pool.start(group)
    for index in (1, 4, 0, 3, 2):
        pool.pause(groups[index])
    assert pool.waiting == groups
