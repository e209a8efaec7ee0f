from __future__ import annotations

import pytest

from kernels.sum_ways import CAPACITY_BYTES, WAYS, Way, way_of


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_more_bytes_go_another_way_until_nccl_sums(num_ranks):
    ways = [way_of(num_ranks, 1 << power) for power in range(1, 40)]
    assert ways[0] in Way and ways[-1] is None
    changes = [way for way, before in zip(ways[1:], ways, strict=False) if way is not before]
    assert len(changes) == len(set(changes)), "none is come back to"


def test_each_table_rises_and_has_room():
    for ways in WAYS.values():
        limits = [limit for limit, _ in ways]
        assert limits == sorted(limits) and limits[-1] <= CAPACITY_BYTES


def test_ranks_between_two_go_by_the_more_and_above_all_by_the_most():
    for num_bytes in (1 << 10, 1 << 20, 1 << 24):
        assert way_of(3, num_bytes) is way_of(4, num_bytes)
        assert way_of(16, num_bytes) is way_of(max(WAYS), num_bytes)


def test_one_shot_of_many_ranks_has_room_for_what_all_others_send():
    for num_ranks, ways in WAYS.items():
        for limit, way in ways:
            assert way is not Way.PUSHED_ONE_SHOT or (num_ranks - 1) * limit <= CAPACITY_BYTES
