from __future__ import annotations

import dataclasses
from functools import cache
from itertools import pairwise

import pytest

from loadtest.capacity.lane import Layout, lane_of
from loadtest.capacity.planner import (
    Capacity,
    Objectives,
    Plan,
    capacity_of,
    fewest_gpus,
    num_replicas_for,
    plan_for,
)
from loadtest.capacity.simulation import requests_of
from loadtest.workload import named
from tests.loadtest.capacity.modelled_profile import MAX_MODEL_LEN, modelled_profile

ONE_GPU = Layout(1, 1)
REQUESTS = requests_of(named("orca"), 30, MAX_MODEL_LEN)


@cache
def capacity(objectives: Objectives, layout: Layout = ONE_GPU) -> Capacity:
    return capacity_of(modelled_profile(), lane_of(modelled_profile(), layout), REQUESTS, objectives)


def test_more_traffic_never_needs_fewer_replicas():
    of_one = capacity(Objectives(0.95, 0.1, 0.006))
    needed = [num_replicas_for(of_one, rate / 7) for rate in range(1, 3000, 13)]
    assert all(less <= more for less, more in pairwise(needed))
    assert needed[0] == 1
    assert num_replicas_for(of_one, 3 * of_one.requests_per_s) == 3
    assert num_replicas_for(of_one, 3.01 * of_one.requests_per_s) == 4
    assert num_replicas_for(of_one, 3 * of_one.requests_per_s, num_spare=2) == 5


@pytest.mark.parametrize("name", ["ttft_s", "tpot_s"])
def test_a_tighter_objective_never_lets_a_replica_take_more(name: str):
    within = {"ttft_s": (0.016, 0.019, 0.5, None), "tpot_s": (0.005, 0.0055, 0.2, None)}[name]
    rates = [capacity(Objectives(0.95, **{name: each})).requests_per_s for each in within]
    assert rates == sorted(rates)
    assert rates[-1] > 1.3 * rates[1] > 0
    assert capacity(Objectives(0.5, **{name: within[1]})).requests_per_s >= rates[1], "of fewer requests"


def test_what_limits_is_told_and_what_nothing_meets():
    assert capacity(Objectives(0.95)).limit == "throughput"
    assert capacity(Objectives(0.95, ttft_s=0.019)).limit == "TTFT"
    assert capacity(Objectives(0.95, tpot_s=0.006)).limit == "TPOT"
    impossible = capacity(Objectives(0.95, ttft_s=1e-4))
    assert (impossible.requests_per_s, impossible.limit) == (0, "TTFT")


def test_a_plan_meets_the_objectives_at_its_own_rate():
    objectives = Objectives(0.95, 0.1, 0.006)
    of_one = capacity(objectives)
    plan = plan_for(modelled_profile(), of_one, REQUESTS, 2.5 * of_one.requests_per_s)
    assert plan.num_replicas == 3
    assert objectives.missed(plan.seen) is None


def test_stages_are_lanes_of_a_replica():
    one, two = (capacity(Objectives(0.95, 0.1, 0.02), Layout(1, stages)) for stages in (1, 2))
    assert 1.5 < two.requests_per_s / one.requests_per_s <= 2
    one, two = (capacity(Objectives(0.95, 0.1, 0.006), Layout(1, stages)) for stages in (1, 2))
    assert two.requests_per_s < one.requests_per_s, "the way between stages is a part of each token's time"


def test_the_fewest_gpus_are_chosen_and_of_as_many_the_more_replicas():
    small, large = capacity(Objectives(0.95)), capacity(Objectives(0.95), Layout(2, 1))
    seen = plan_for(modelled_profile(), small, REQUESTS, 1.0).seen
    plans = [Plan(large, 2, seen), Plan(small, 4, seen), Plan(small, 5, seen)]
    assert fewest_gpus(plans) == plans[1]
    assert dataclasses.replace(plans[0], num_replicas=1).num_gpus == 2
