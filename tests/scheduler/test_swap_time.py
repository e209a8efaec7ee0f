from __future__ import annotations

import pytest

from service.scheduler.swap_time import SwapTime


def test_each_way_has_its_start_and_its_time_a_block():
    swap_time = SwapTime()
    for num_blocks in (1, 4, 16, 64):
        swap_time.observe(to_host=True, num_blocks=num_blocks, seconds=1e-3 + 2e-4 * num_blocks)
        swap_time.observe(to_host=False, num_blocks=num_blocks, seconds=2e-3 + 1e-4 * num_blocks)
    for num_blocks in (1, 4, 16, 64):
        swap_time.observe(to_host=True, num_blocks=num_blocks, seconds=1e-3 + 2e-4 * num_blocks)
    assert swap_time.one_way_s(to_host=True, num_blocks=30) == pytest.approx(7e-3, rel=1e-3)
    for num_blocks in (1, 4, 16, 64):
        swap_time.observe(to_host=False, num_blocks=num_blocks, seconds=2e-3 + 1e-4 * num_blocks)
    assert swap_time.seconds(30) == pytest.approx(7e-3 + 5e-3, rel=1e-3)


def test_the_few_timings_of_the_start_all_count():
    swap_time = SwapTime()
    for num_blocks in (1, 64):
        for to_host in (True, False):
            swap_time.observe(to_host=to_host, num_blocks=num_blocks, seconds=1e-5 + 2e-4 * num_blocks)
    assert swap_time.seconds(30) == pytest.approx(2 * (1e-5 + 6e-3), rel=1e-3)


def test_who_waits_for_a_transfer_waits_for_its_launch_too():
    swap_time = SwapTime()
    for to_host in (True, False):
        for num_blocks in (1, 64):
            swap_time.observe(to_host=to_host, num_blocks=num_blocks, seconds=2e-4 * num_blocks)
            swap_time.observe_launch(to_host=to_host, seconds=4e-5 if num_blocks == 1 else 6e-5)
    assert swap_time.one_way_s(to_host=True, num_blocks=1) == pytest.approx(2e-4, rel=1e-3)
    assert swap_time.seconds(1) == pytest.approx(2 * (2e-4 + 5e-5), rel=1e-3)


def test_it_is_known_once_both_ways_are():
    swap_time = SwapTime()
    assert swap_time.one_way_s(to_host=True, num_blocks=1) is None
    swap_time.observe(to_host=True, num_blocks=1, seconds=0.1)
    assert not swap_time.is_known
    swap_time.observe(to_host=False, num_blocks=1, seconds=0.1)
    assert swap_time.is_known


def test_a_link_that_has_become_slower_is_noticed():
    swap_time = SwapTime()
    for _ in range(20):
        swap_time.observe(to_host=True, num_blocks=10, seconds=0.01)
    for _ in range(800):
        swap_time.observe(to_host=True, num_blocks=10, seconds=0.03)
    assert swap_time.one_way_s(to_host=True, num_blocks=10) == pytest.approx(0.03, rel=0.02)
