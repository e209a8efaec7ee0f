from __future__ import annotations

from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_pool import BlockPool
from service.kvcache.swap_space import SwapSpace
from service.scheduler.fairness import Fair
from tests.engine.harness import Harness


def make_group(order: int, length: int, arrival_s: float, num_preemptions: int = 0) -> SequenceGroup:
    group = SequenceGroup(Request(str(order), (1,) * length, SamplingParams(max_tokens=1), arrival_s), order)
    group.num_preemptions = num_preemptions
    return group


def make_host(num_used: int, *sequence_ids: int) -> SwapSpace:
    """Swap space of sixteen blocks; each of these sequences has `num_used` of them."""
    device = BlockPool(16)
    swap_space = SwapSpace(16, device)
    for sequence_id in sequence_ids:
        swap_space.swap_out({sequence_id: [device.allocate() for _ in range(num_used)]})
    return swap_space


def ordered(waiting: list[SequenceGroup], now_s: float, host: SwapSpace | None = None) -> list[SequenceGroup]:
    fair = Fair(host or SwapSpace(0, BlockPool(1)))
    for group in waiting:
        fair.begins_to_wait(group)
    return list(fair.order(waiting, now_s))


def test_short_requests_do_not_wait_behind_long_ones():
    long, short = make_group(0, 100, 0.0), make_group(1, 10, 1.0)
    assert ordered([long, short], 2.0) == [short, long]


def test_who_started_last_gives_way_however_short_it_is():
    fair = Fair(SwapSpace(0, BlockPool(1)))
    long, short = make_group(0, 100, 0.0), make_group(1, 10, 1.0)
    assert fair.victim([long, short]) is short
    assert fair.victim([short, long]) is long


def test_who_has_just_returned_is_not_chased_out_again_while_others_never_gave_way():
    fair = Fair(SwapSpace(0, BlockPool(1)))
    once, never, twice = (make_group(order, 10, 0.0, num) for order, num in enumerate((1, 0, 2)))
    assert fair.victim([once, never, twice]) is never
    assert fair.victim([once, twice]) is once


def test_a_long_request_is_not_starved_by_short_ones_that_keep_coming():
    long, fresh = make_group(0, 100, 0.0), make_group(1, 1, 99.5)
    assert ordered([long, fresh], 100.0) == [long, fresh]


def test_the_queue_of_higher_mean_goes_first_as_a_whole():
    preempted = [make_group(0, 10, 0.0, num_preemptions=1), make_group(1, 40, 0.0, num_preemptions=1)]
    new = [make_group(2, 17, 0.0), make_group(3, 18, 0.0)]
    assert ordered([*preempted, *new], 10.0, make_host(1, 0, 1)) == [*preempted, *new]
    new[0] = make_group(2, 5, 0.0)
    assert ordered([*preempted, *new], 10.0, make_host(1, 0, 1)) == [*new, *preempted]


def test_a_queue_does_not_go_first_for_being_long():
    preempted = [make_group(number, 20, 0.0, num_preemptions=1) for number in range(5)]
    new = [make_group(5, 15, 0.0)]
    assert ordered([*preempted, *new], 10.0, make_host(1, *range(5))) == [*new, *preempted]


def test_preempted_ones_go_first_while_the_host_has_hardly_room_for_more():
    """A request preempted for a new one would be dropped and recomputed."""
    preempted, new = make_group(0, 40, 0.0, num_preemptions=1), make_group(1, 5, 0.0)
    for num_used, first in ((14, new), (15, preempted), (16, preempted)):
        assert ordered([preempted, new], 10.0, make_host(num_used, 0))[0] is first


def test_then_those_whom_the_host_holds_leave_it_before_others_are_computed_again():
    dropped, swapped = make_group(0, 10, 0.0, num_preemptions=1), make_group(1, 40, 0.0, num_preemptions=1)
    assert ordered([dropped, swapped], 10.0, make_host(15, 1)) == [swapped, dropped]
    assert ordered([dropped, swapped], 10.0, make_host(1, 1)) == [dropped, swapped]


def test_who_was_dropped_competes_among_the_new_ones():
    dropped, swapped = make_group(0, 40, 0.0, num_preemptions=1), make_group(1, 20, 0.0, num_preemptions=1)
    new = make_group(2, 10, 0.0)  # the mean of it and the dropped one is 0.625
    assert ordered([dropped, swapped, new], 10.0, make_host(1, 1)) == [new, dropped, swapped]
    new = make_group(2, 15, 0.0)  # 0.458, and 0.5 of the one that the host holds
    assert ordered([dropped, swapped, new], 10.0, make_host(1, 1)) == [swapped, new, dropped]


def test_without_a_host_new_ones_go_first_as_they_do_in_the_paper():
    preempted, new = make_group(0, 40, 0.0, num_preemptions=1), make_group(1, 5, 0.0)
    assert ordered([preempted, new], 10.0)[0] is new


def test_who_starts_or_ends_waits_no_more():
    fair = Fair(SwapSpace(0, BlockPool(1)))
    preempted, new = make_group(0, 40, 0.0, num_preemptions=1), make_group(1, 5, 0.0)
    fair.begins_to_wait(preempted)
    fair.begins_to_wait(new)
    fair.stops_waiting(new)
    assert list(fair.order([preempted], 10.0)) == [preempted]
    fair.stops_waiting(preempted)
    assert list(fair.order([], 10.0)) == []


def weighted_turnaround(policy: str) -> float:
    """AdaptiveLLM's measure for a few long requests and more short ones, with one running at a time."""
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
