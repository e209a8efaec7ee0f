from __future__ import annotations

import random

import pytest

from service.prediction.swap_time import Copies, SwapTime


def observe(swap_time: SwapTime, to_host: bool, num_blocks: int, seconds: float, is_first: bool = False) -> None:
    swap_time.observe(Copies(to_host, num_blocks, is_first), seconds)


def out_s(swap_time: SwapTime, num_blocks: int, is_first: bool = False) -> float | None:
    return swap_time.predicted_s(Copies(True, num_blocks, is_first))


def test_each_way_has_its_start_and_its_time_a_block():
    swap_time = SwapTime()
    for _ in range(2):
        for num_blocks in (1, 4, 16, 64):
            observe(swap_time, True, num_blocks, 1e-3 + 2e-4 * num_blocks)
            observe(swap_time, False, num_blocks, 2e-3 + 1e-4 * num_blocks)
    assert out_s(swap_time, 30) == pytest.approx(7e-3, rel=1e-3)
    assert swap_time.there_and_back_s(30) == pytest.approx(7e-3 + 5e-3, rel=1e-3)


def test_the_first_transfer_of_a_plan_takes_longer_to_begin():
    swap_time = SwapTime()
    for is_first in (True, False):
        for to_host in (True, False):
            for num_blocks in (1, 3, 8):
                observe(swap_time, to_host, num_blocks, 4e-5 * num_blocks + 3e-5 * is_first, is_first)
    assert out_s(swap_time, 2, is_first=True) == pytest.approx(11e-5, rel=1e-3)
    assert out_s(swap_time, 2, is_first=False) == pytest.approx(8e-5, rel=1e-3)
    assert swap_time.there_and_back_s(2) == pytest.approx(22e-5, rel=1e-3), "by itself each way"


def test_the_few_timings_of_the_start_all_count():
    swap_time = SwapTime()
    for num_blocks in (1, 64):
        for to_host in (True, False):
            swap_time.calibrate(Copies(to_host, num_blocks), 1e-5 + 2e-4 * num_blocks)
    assert swap_time.there_and_back_s(30) == pytest.approx(2 * (1e-5 + 6e-3), rel=1e-3)


def test_numbers_of_blocks_that_traffic_does_not_have_stay_known():
    swap_time, chance = SwapTime(), random.Random(0)
    for num_blocks in (1, 4, 16, 64):
        swap_time.calibrate(Copies(True, num_blocks, False), 1e-5 + 4e-5 * num_blocks)
    for _ in range(500):
        num_blocks = chance.randint(1, 3)
        observe(swap_time, True, num_blocks, (1e-5 + 4e-5 * num_blocks) * (1 + chance.uniform(-0.1, 0.1)))
        assert out_s(swap_time, 100) == pytest.approx(4.01e-3, rel=0.1)


def test_it_is_known_once_both_ways_are():
    swap_time = SwapTime()
    assert out_s(swap_time, 1) is None
    observe(swap_time, True, 1, 0.1)
    assert swap_time.there_and_back_s(1) is None
    observe(swap_time, False, 1, 0.1)
    assert swap_time.there_and_back_s(1) == pytest.approx(0.2)


def test_a_link_that_has_become_slower_is_noticed():
    swap_time = SwapTime()
    for _ in range(20):
        observe(swap_time, True, 10, 0.01)
    for _ in range(800):
        observe(swap_time, True, 10, 0.03)
    assert out_s(swap_time, 10) == pytest.approx(0.03, rel=0.02)
