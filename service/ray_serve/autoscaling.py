"""How many replicas: by the requests that wait in the servers' own queues, and by how much of the servers is in use.

Serve's own measure, calls in flight, tells neither: a server may be full with ten long requests or idle with a hundred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from service.ray_serve.replica import BUSY, WAITING

FULL = 0.8
"""Of what a replica can hold: where the next burst would wait."""


class Context(Protocol):
    """What is read of Serve's AutoscalingContext: averages over its window, by metric and replica."""

    aggregated_metrics: Mapping[str, Mapping[Any, float]] | None
    current_num_replicas: int


class ByWaitingRequests:
    """A policy of Serve, which keeps it in bounds and delays it (min, max, upscale_delay_s, downscale_delay_s)."""

    def __init__(self, waiting_per_replica: float) -> None:
        self._waiting_per_replica = waiting_per_replica

    def __call__(self, context: Context) -> tuple[float, dict[str, Any]]:
        metrics = context.aggregated_metrics or {}
        if not metrics.get(BUSY):  # nobody has told anything yet
            return context.current_num_replicas, {}
        return replicas_for(metrics[BUSY].values(), metrics[WAITING].values(), self._waiting_per_replica), {}


def replicas_for(busy: Iterable[float], waiting: Iterable[float], waiting_per_replica: float) -> float:
    """So many that what runs fills each to `FULL`, and one more for each `waiting_per_replica` requests that wait.

    The sum over replicas does not change when the same load moves to more of them, so neither does the answer.
    """
    return sum(busy) / FULL + sum(waiting) / waiting_per_replica
