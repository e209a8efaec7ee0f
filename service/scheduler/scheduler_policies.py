"""The questions that the scheduler does not answer itself."""

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
    """scheduling: who goes next, and who must pause. admission: when a waiting request fits. preemption: how one that
    had to pause returns. chunk_budget: how many tokens an iteration may have.
    background_chunk: how many of them may be prompts' in the background, while there are others.
    training: whether requests go first, or a training. speculation: None: nobody drafts.
    """

    scheduling: SchedulingPolicy
    admission: Admission
    preemption: Preemption
    chunk_budget: ChunkBudget
    training: TrainingPolicy = field(default_factory=lambda: DeferredBatching(0.0))
    speculation: Speculation | None = None
    background_chunk: int = ON_CPU
