"""The number of replicas, by the requests that wait in the servers' own queues, and by the servers' use.

Serve's own measure, calls in flight, shows neither: a server may be full with ten long requests or idle with a hundred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from service.ray_serve.replica import BUSY, WAITING

FULL = 0.8
"""The use of a replica, from 0 to 1, at which the next burst would wait."""


class Context(Protocol):
    """The part of Serve's AutoscalingContext that is used: averages over its window, by metric and replica."""

    aggregated_metrics: Mapping[str, Mapping[Any, float]] | None
    current_num_replicas: int


class ByWaitingRequests:
    """A policy for Serve, which bounds and delays it (min, max, upscale_delay_s, downscale_delay_s)."""

    def __init__(self, waiting_per_replica: float) -> None:
        self._waiting_per_replica = waiting_per_replica

    def __call__(self, context: Context) -> tuple[float, dict[str, Any]]:
        metrics = context.aggregated_metrics or {}
        if not metrics.get(BUSY):  # no replica has reported yet
            return context.current_num_replicas, {}
        return replicas_for(metrics[BUSY].values(), metrics[WAITING].values(), self._waiting_per_replica), {}


def replicas_for(busy: Iterable[float], waiting: Iterable[float], waiting_per_replica: float) -> float:
    """As many replicas as the running requests fill to `FULL`, and one more for each `waiting_per_replica` waiting
    requests.

    The sum over replicas does not change when the same load moves to more of them, so neither does the result.
    """
    return sum(busy) / FULL + sum(waiting) / waiting_per_replica
