"""From objectives to the rate that a replica can take, and from the traffic's rate to a number of replicas.

A replica's rate depends only on the objectives, and is searched on a grid that is the same for all objectives. So more
traffic or tighter objectives never need fewer replicas.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.capacity.lane import Lane
from loadtest.capacity.replica_profile import ReplicaProfile
from loadtest.capacity.simulation import Seen, simulate
from loadtest.trace import TraceRequest

GRID_STEP = 1.05
GRID_SIZE = 64
"""The grid goes down to about a twentieth of the highest rate."""
HIGHEST_LOAD = 0.95
"""Share of a full replica's throughput. Above it, queues grow as long as the traffic lasts."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """This share of the requests must have its first token within ttft_s and later ones within tpot_s each; None: no
    limit."""

    share: float
    ttft_s: float | None = None
    tpot_s: float | None = None

    def missed(self, seen: Seen) -> str | None:
        """The objective that is missed, `TTFT` or `TPOT`; None if both are met."""
        if self.ttft_s is not None and seen.ttft_s(self.share) > self.ttft_s:
            return "TTFT"
        if self.tpot_s is not None and seen.tpot_s(self.share) > self.tpot_s:
            return "TPOT"
        return None


@dataclass(frozen=True, slots=True)
class Capacity:
    """requests_per_s: per replica; 0 if an objective is missed even with hardly any load. limit: what a higher rate
    would miss: `TTFT`, `TPOT` or `throughput`."""

    lane: Lane
    requests_per_s: float
    limit: str


@dataclass(frozen=True, slots=True)
class Plan:
    """seen: what requests see on each of `num_replicas` replicas while all of them run."""

    capacity: Capacity
    num_replicas: int
    seen: Seen

    @property
    def num_gpus(self) -> int:
        """In all."""
        return self.num_replicas * self.capacity.lane.layout.num_gpus


def capacity_of(
    profile: ReplicaProfile, lane: Lane, requests: Sequence[TraceRequest], objectives: Objectives
) -> Capacity:
    """The highest rate of the grid that meets the objectives, provided that lower ones do.

    Bisection: a rate that meets a tighter objective meets a looser one, so the search with the looser one never ends
    lower, even if a percentile does not grow with each step of the rate.
    """
    num_lanes = lane.layout.pipeline_parallel_size
    highest = HIGHEST_LOAD * simulate(profile, lane, requests).requests_per_s
    missed_by: dict[int, str | None] = {}

    def meets(step: int) -> bool:
        missed_by[step] = objectives.missed(simulate(profile, lane, requests, highest / GRID_STEP**step))
        return missed_by[step] is None

    if meets(0):
        return Capacity(lane, highest * num_lanes, "throughput")
    too_fast, slow_enough = 0, GRID_SIZE - 1
    if not meets(slow_enough):
        return Capacity(lane, 0.0, missed_by[slow_enough] or "")
    while slow_enough - too_fast > 1:
        middle = (too_fast + slow_enough) // 2
        if meets(middle):
            slow_enough = middle
        else:
            too_fast = middle
    return Capacity(lane, highest / GRID_STEP**slow_enough * num_lanes, missed_by[too_fast] or "")


def num_replicas_for(capacity: Capacity, request_rate: float, num_spare: int = 0) -> int:
    """Enough that the others meet the objectives while `num_spare` have failed. The capacity must be above 0."""
    return max(1, math.ceil(request_rate / capacity.requests_per_s - 1e-9)) + num_spare


def plan_for(
    profile: ReplicaProfile,
    capacity: Capacity,
    requests: Sequence[TraceRequest],
    request_rate: float,
    num_spare: int = 0,
) -> Plan:
    """Divides the traffic among replicas, and in each among its lanes. The capacity must be above 0."""
    num_replicas = num_replicas_for(capacity, request_rate, num_spare)
    of_lane = request_rate / num_replicas / capacity.lane.layout.pipeline_parallel_size
    return Plan(capacity, num_replicas, simulate(profile, capacity.lane, requests, of_lane))


def fewest_gpus(plans: Sequence[Plan]) -> Plan:
    """If several have the same number of GPUs, the one with the most replicas: losing one of them costs least."""
    return min(plans, key=lambda plan: (plan.num_gpus, -plan.num_replicas))
