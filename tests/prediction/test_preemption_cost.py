from __future__ import annotations

import pytest

from service.prediction.iteration_time import IterationTime, Workload, num_attended_pairs
from service.prediction.preemption_cost import PreemptionCost
from service.prediction.swap_time import SwapTime


def make_cost(*, max_tokens: int = 2048, block_s: float = 1e-4) -> PreemptionCost:
    """Iterations of 4 ms and 20 us a token, and blocks that take `block_s` each way."""
    iteration_time, swap_time = IterationTime(), SwapTime()
    for start in (0, 512, 2048):
        for num_tokens in (2, 64, 256, 1024, 2048):
            workload = Workload.of_chunk(start, num_tokens)
            iteration_time.calibrate(workload, seconds_of(start, num_tokens))
    iteration_time.fit()
    for to_host in (True, False):
        swap_time.observe(to_host=to_host, num_blocks=1, is_first=True, seconds=block_s)
    return PreemptionCost(iteration_time, swap_time, max_tokens)


def seconds_of(start: int, num_tokens: int) -> float:
    return 4e-3 + 2e-5 * num_tokens + 1e-9 * num_attended_pairs(start, num_tokens)


def recompute_s(cost: PreemptionCost, num_tokens: int, num_kept: int = 0) -> float:
    seconds = cost.predict(num_tokens, num_kept, 1).recompute_s
    assert seconds is not None
    return seconds


def test_recomputing_is_one_prefill():
    assert recompute_s(make_cost(), 777) == pytest.approx(seconds_of(0, 777), rel=1e-3)


def test_a_long_cache_is_recomputed_in_chunks():
    expected = seconds_of(0, 2048) + seconds_of(2048, 952)
    assert recompute_s(make_cost(), 3000) == pytest.approx(expected, rel=1e-3)


def test_what_others_keep_in_the_prefix_cache_is_not_computed_again():
    cost = make_cost()
    assert recompute_s(cost, 1000, num_kept=600) == pytest.approx(seconds_of(600, 400), rel=1e-3)
    assert recompute_s(cost, 500, num_kept=600) == 0


def test_swapping_takes_both_ways():
    predicted = make_cost(block_s=1e-4).predict(1000, 0, 1)
    assert predicted.swap_s == pytest.approx(2e-4)


def test_nothing_is_known_before_anything_was_seen():
    assert PreemptionCost(IterationTime(), SwapTime(), 2048).predict(100, 0, 7) == (None, None)
