from __future__ import annotations

import pytest

from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_pool import BlockPool
from service.kvcache.swap_space import SwapSpace
from service.scheduler.fairness import Fair, fair_priority
from tests.engine.harness import Harness

FAIR = Fair(SwapSpace(0, BlockPool(1)))


def make_group(order: int, length: int, arrival_s: float, num_preemptions: int = 0) -> SequenceGroup:
    group = SequenceGroup(Request(str(order), (1,) * length, SamplingParams(max_tokens=1), arrival_s), order)
    group.num_preemptions = num_preemptions
    return group


def test_priority_is_time_since_arrival_per_token():
    assert fair_priority(make_group(0, 10, 2.0), 7.0) == pytest.approx(0.5)


def test_short_requests_do_not_wait_behind_long_ones():
    long, short = make_group(0, 100, 0.0), make_group(1, 10, 1.0)
    assert list(FAIR.order([long, short], 2.0)) == [short, long]


def test_who_started_last_gives_way_however_short_it_is():
    long, short = make_group(0, 100, 0.0), make_group(1, 10, 1.0)
    assert FAIR.victim([long, short], 2.0) is short
    assert FAIR.victim([short, long], 2.0) is long


def test_a_long_request_is_not_starved_by_short_ones_that_keep_coming():
    long, fresh = make_group(0, 100, 0.0), make_group(1, 1, 99.5)
    assert list(FAIR.order([long, fresh], 100.0)) == [long, fresh]


def test_the_queue_of_higher_mean_goes_first_as_a_whole():
    preempted = [make_group(0, 10, 0.0, num_preemptions=1), make_group(1, 40, 0.0, num_preemptions=1)]
    new = [make_group(2, 17, 0.0), make_group(3, 18, 0.0)]
    order = FAIR.order([*preempted, *new], 10.0)
    assert [g.arrival_order for g in order] == [0, 1, 2, 3]
    new[0] = make_group(2, 5, 0.0)
    order = FAIR.order([*preempted, *new], 10.0)
    assert [g.arrival_order for g in order] == [2, 3, 0, 1]


def test_a_queue_does_not_go_first_for_being_long():
    preempted = [make_group(number, 20, 0.0, num_preemptions=1) for number in range(5)]
    new = [make_group(5, 15, 0.0)]
    order = FAIR.order([*preempted, *new], 10.0)
    assert [g.arrival_order for g in order] == [5, 0, 1, 2, 3, 4]


def test_preempted_ones_go_first_while_the_host_has_hardly_room_for_more():
    """Who gives way for a new one would be dropped, and computed again."""
    preempted, new = make_group(0, 40, 0.0, num_preemptions=1), make_group(1, 5, 0.0)
    for num_used, first in ((6, new), (7, preempted), (8, preempted)):
        device = BlockPool(8)
        swap_space = SwapSpace(8, device)
        swap_space.move_out({0: [device.allocate() for _ in range(num_used)]})
        assert Fair(swap_space).order([preempted, new], 10.0)[0] is first


def test_then_those_whom_the_host_holds_leave_it_before_others_are_computed_again():
    device = BlockPool(8)
    swap_space = SwapSpace(8, device)
    dropped, swapped = make_group(0, 10, 0.0, num_preemptions=1), make_group(1, 40, 0.0, num_preemptions=1)
    swap_space.move_out({swapped.leader.sequence_id: [device.allocate() for _ in range(7)]})
    assert list(Fair(swap_space).order([dropped, swapped], 10.0)) == [swapped, dropped]
    assert list(FAIR.order([dropped, swapped], 10.0)) == [dropped, swapped]


def test_without_a_host_new_ones_go_first_as_they_do_in_the_paper():
    preempted, new = make_group(0, 40, 0.0, num_preemptions=1), make_group(1, 5, 0.0)
    assert FAIR.order([preempted, new], 10.0)[0] is new


def weighted_turnaround(policy: str) -> float:
    """AdaptiveLLM's measure over one long request and many short ones on one seat."""
    harness = Harness(num_blocks=400, max_num_seqs=1, max_num_batched_tokens=4, policy=policy)
    for seed in range(10):
        long = seed % 3 == 0
        harness.add(harness.request((1,) * (60 if long else 2), 20 if long else 2, seed=seed))
    harness.run()
    ratios = []
    for stats, _, _ in harness.sink.requests:
        assert stats.first_scheduled_s is not None
        ratios.append(stats.e2e_s / (stats.finished_s - stats.first_scheduled_s))
    return sum(ratios) / len(ratios)


def test_weighted_turnaround_is_lower_than_first_come_first_served():
    assert weighted_turnaround("fair") < 0.8 * weighted_turnaround("fcfs")
