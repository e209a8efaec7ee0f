from __future__ import annotations

from dataclasses import replace

from service.core.adapter import Adapter
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import GroupStatus, SequenceGroup
from service.kvcache.adapter_slots import AdapterSlots
from service.kvcache.block_pool import BlockPool
from service.scheduler.fcfs import FirstComeFirstServed
from service.scheduler.request_pool import RequestPool
from service.scheduler.scheduling_policy import SchedulingPolicy


def make_group(name: str, n: int = 1, first_sequence_id: int = 0) -> SequenceGroup:
    return SequenceGroup(Request(name, (1, 2), SamplingParams(max_tokens=1, n=n), 0.0), first_sequence_id)


def make_pool(policy: SchedulingPolicy) -> RequestPool:
    return RequestPool(policy, 16, AdapterSlots(0, BlockPool(1)))


def test_starting_and_pausing_keep_the_order_of_arrival():
    pool = make_pool(FirstComeFirstServed())
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
    pool = make_pool(FirstComeFirstServed())
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
    pool = make_pool(FirstComeFirstServed())
    group = make_group("a", n=2, first_sequence_id=5)
    pool.add(group)
    assert pool.member(6) == (group, group.sequences[1])


def test_whoever_pauses_stands_between_those_that_came_before_and_after():
    pool = make_pool(FirstComeFirstServed())
    groups = [make_group(name, first_sequence_id=i) for i, name in enumerate("abcde")]
    for group in groups:
        pool.add(group)
        pool.start(group)
    for index in (1, 4, 0, 3, 2):
        pool.pause(groups[index])
    assert pool.waiting == groups


class Told(FirstComeFirstServed):
    """Records which requests wait, by what it was told."""

    def __init__(self) -> None:
        self.waiting: set[SequenceGroup] = set()

    def begins_to_wait(self, group: SequenceGroup) -> None:
        assert group not in self.waiting
        self.waiting.add(group)

    def stops_waiting(self, group: SequenceGroup) -> None:
        self.waiting.remove(group)


def test_the_policy_is_told_who_waits():
    policy = Told()
    pool = make_pool(policy)
    a, b = make_group("a"), make_group("b", first_sequence_id=1)
    for group in (a, b):
        pool.add(group)
    assert policy.waiting == {a, b}
    pool.start(a)
    assert policy.waiting == {b}
    pool.pause(a)
    assert policy.waiting == {a, b}
    for group in (a, b):
        pool.remove_sequence(group, group.leader)
        pool.remove(group)
    assert policy.waiting == set()


def test_waiting_tokens_follow_pauses_and_choices_that_end():
    pool = make_pool(FirstComeFirstServed())
    group, other = make_group("a", n=2), make_group("b", first_sequence_id=2)
    pool.add(group)
    pool.add(other)
    assert pool.waiting_tokens.total == group.num_tokens_to_compute + other.num_tokens_to_compute > 0
    pool.start(group)
    assert pool.waiting_tokens.total == other.num_tokens_to_compute
    group.is_forked = True
    for sequence in group.live:
        sequence.num_computed_tokens = 0
    pool.pause(group)
    assert pool.waiting_tokens.total == group.num_tokens_to_compute + other.num_tokens_to_compute
    before = pool.waiting_tokens.total
    pool.remove_sequence(group, group.live[1])
    assert pool.waiting_tokens.total == group.num_tokens_to_compute + other.num_tokens_to_compute < before


def test_who_runs_pins_its_adapter_however_it_ends_and_is_counted_by_name():
    slots, adapter = AdapterSlots(2, BlockPool(8)), Adapter("poet", 1, 2, "ab")
    pool = RequestPool(FirstComeFirstServed(), 16, slots)
    groups = [make_group(name, first_sequence_id=number) for number, name in enumerate("abc")]
    for group in groups:
        group.request = replace(group.request, adapter=adapter if group is not groups[2] else None)
        pool.add(group)
    counts = []
    for change in (
        lambda: [pool.start(group) for group in groups],
        lambda: pool.pause(groups[0]),
        lambda: end(pool, groups[1]),
        lambda: pool.start(groups[0]),
        lambda: end(pool, groups[0]),
    ):
        change()
        is_pinned = slots.num_blocks_to_pin(adapter) == 0
        counts.append((pool.num_running_by_adapter["poet"], pool.num_waiting_by_adapter["poet"], is_pinned))
    assert counts == [(2, 0, True), (1, 1, True), (0, 1, False), (1, 0, True), (0, 0, False)]
    assert not (pool.num_running_by_adapter or pool.num_waiting_by_adapter), "nobody is remembered"


def end(pool: RequestPool, group: SequenceGroup) -> None:
    pool.remove_sequence(group, group.leader)
    pool.remove(group)
