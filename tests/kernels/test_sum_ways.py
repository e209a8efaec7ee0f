from __future__ import annotations

import pytest

from kernels.sum_ways import WAYS, Way, way_of


@pytest.mark.parametrize("num_ranks", [3, 4, 8])
def test_few_bytes_go_one_shot_more_two_shot_and_most_by_nccl(num_ranks):
    ways = [way_of(num_ranks, 1 << power) for power in range(1, 40)]
    assert list(dict.fromkeys(ways)) == [Way.ONE_SHOT, Way.TWO_SHOT, None]
    assert ways == sorted(ways, key=[Way.ONE_SHOT, Way.TWO_SHOT, None].index), "none is come back to"


def test_two_ranks_move_as_much_either_way_and_wait_once():
    assert {way_of(2, 1 << power) for power in range(1, 40)} == {Way.ONE_SHOT}


def test_ranks_between_two_go_by_the_more_and_above_all_by_the_most():
    for power in range(1, 40):
        assert way_of(3, 1 << power) is way_of(4, 1 << power)
        assert way_of(16, 1 << power) is way_of(max(WAYS), 1 << power)
