"""Counts of what the scheduler decided, for the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.core.stats import Deferral, Prediction


@dataclass(slots=True)
class DecisionTally:
    """`core/stats.py` explains each count."""

    num_dropped: int = 0
    num_swapped: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    swapped_blocks: int = 0
    num_adapter_loads: int = 0
    num_adapter_evictions: int = 0
    num_arena_returns: int = 0
    num_micro_batches_lost: int = 0
    predictions: tuple[Prediction, ...] = ()
    deferrals: list[Deferral] = field(default_factory=list)
