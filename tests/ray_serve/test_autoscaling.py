from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.ray_serve.autoscaling import FULL, ByWaitingRequests, replicas_for
from service.ray_serve.replica import BUSY, WAITING

shares = st.lists(st.floats(0, 1), min_size=1, max_size=8)
waits = st.lists(st.integers(0, 1000), min_size=1, max_size=8)


@dataclass
class Told:
    aggregated_metrics: dict[str, dict[str, float]] | None
    current_num_replicas: int = 3


@given(shares, waits, st.integers(1, 64))
def test_more_load_never_wants_fewer(busy: list[float], waiting: list[int], a_replica: int):
    wanted = replicas_for(busy, waiting, a_replica)
    assert replicas_for([*busy, 0.5], waiting, a_replica) >= wanted
    assert replicas_for(busy, [*waiting, 5], a_replica) > wanted


@given(st.floats(0.01, 1), st.integers(1, 8))
def test_the_same_load_on_more_replicas_wants_as_many(busy: float, spread: int):
    alone = replicas_for([busy], [0], 8)
    assert replicas_for([busy / spread] * spread, [0] * spread, 8) == pytest.approx(alone)


def test_full_replicas_on_which_requests_wait_want_more_and_idle_ones_none():
    assert ceil(replicas_for([1.0, 1.0], [0, 0], 8)) == 3
    assert ceil(replicas_for([1.0], [16], 8)) == 4
    assert replicas_for([0.0, 0.0], [0, 0], 8) == 0  # Serve keeps the least
    assert replicas_for([FULL], [0], 8) == pytest.approx(1)


def test_nobody_is_ended_before_anybody_has_told_anything():
    for metrics in (None, {}, {BUSY: {}, WAITING: {}}):
        assert ByWaitingRequests(8)(Told(metrics))[0] == 3
    told = Told({BUSY: {"a": 0.4, "b": 0.4}, WAITING: {"a": 0, "b": 8}})
    assert ByWaitingRequests(8)(told)[0] == pytest.approx(2)
