from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.scheduler.preemption_cost import PreemptionCost, SwapBandwidth, num_attended_pairs

BANDWIDTH = SwapBandwidth(block_bytes=2_000_000, to_host=50e9, to_device=40e9)


def fitted(per_iteration: float, per_token: float, per_pair: float, noise: float = 0.0) -> PreemptionCost:
    chance = random.Random(0)
    cost = PreemptionCost(BANDWIDTH, 2048)
    for start in (0, 512, 2048):
        for num_tokens in (1, 64, 256, 1024, 2048):
            pairs = num_attended_pairs(start, num_tokens)
            seconds = per_iteration + per_token * num_tokens + per_pair * pairs
            cost.observe(num_tokens, pairs, seconds * (1 + chance.uniform(-noise, noise)))
    cost.fit()
    return cost


@given(st.integers(0, 500), st.integers(0, 500))
def test_pairs_are_counted_as_defined(start: int, num_tokens: int):
    assert num_attended_pairs(start, num_tokens) == sum(start + i + 1 for i in range(num_tokens))


@given(st.floats(1e-4, 1e-2), st.floats(1e-6, 1e-4), st.floats(1e-10, 1e-8))
def test_what_is_linear_is_found_exactly(per_iteration: float, per_token: float, per_pair: float):
    cost = fitted(per_iteration, per_token, per_pair)
    expected = per_iteration + per_token * 777 + per_pair * num_attended_pairs(0, 777)
    assert cost.recompute_s(777) == pytest.approx(expected, rel=1e-6)


def test_noise_of_two_percent_costs_less_than_two_percent():
    cost = fitted(4e-3, 2e-5, 1e-9, noise=0.02)
    for num_tokens in (100, 500, 1500):
        expected = 4e-3 + 2e-5 * num_tokens + 1e-9 * num_attended_pairs(0, num_tokens)
        assert cost.recompute_s(num_tokens) == pytest.approx(expected, rel=0.02)


def test_a_long_cache_is_recomputed_in_chunks():
    cost = fitted(4e-3, 2e-5, 1e-9)
    expected = cost.iteration_s(2048, num_attended_pairs(0, 2048)) + cost.iteration_s(
        952, num_attended_pairs(2048, 952)
    )
    assert cost.recompute_s(3000) == pytest.approx(expected)


def test_coefficients_are_never_negative():
    cost = PreemptionCost(BANDWIDTH, 2048)
    for num_tokens, seconds in ((1, 0.01), (100, 0.008), (1000, 0.02)):
        cost.observe(num_tokens, num_attended_pairs(0, num_tokens), seconds)
    cost.fit()
    assert cost.recompute_s(10) > 0
    assert cost.recompute_s(100_000) > cost.recompute_s(1000)


def test_swapping_takes_its_bytes_over_the_bandwidth_each_way():
    cost = PreemptionCost(BANDWIDTH, 2048)
    assert cost.swap_s(100) == pytest.approx(2e8 / 50e9 + 2e8 / 40e9)
