"""The policies that the scheduler asks."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.scheduler.admission import Admission
from service.scheduler.background_chunks import ON_CPU
from service.scheduler.chunk_budget import ChunkBudget
from service.scheduler.deferred_batching import DeferredBatching, TrainingPolicy
from service.scheduler.preemption import Preemption
from service.scheduler.scheduling_policy import SchedulingPolicy
from service.scheduler.speculation import Speculation


@dataclass(frozen=True, slots=True)
class SchedulerPolicies:
    """scheduling: which group goes next, and which is preempted. admission: whether a waiting group fits. preemption:
    how a preempted group returns. chunk_budget: how many prompt tokens an iteration computes.
    background_chunk: the most background prompt tokens per iteration while there are other requests.
    training: whether requests or the training go first. speculation: None: no drafts.
    """

    scheduling: SchedulingPolicy
    admission: Admission
    preemption: Preemption
    chunk_budget: ChunkBudget
    training: TrainingPolicy = field(default_factory=lambda: DeferredBatching(0.0))
    speculation: Speculation | None = None
    background_chunk: int = ON_CPU
