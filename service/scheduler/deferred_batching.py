"""Deferred continuous batching (FineInfer, section 2.4): do requests wait for the training, or it for them?

Requests that arrive while the batch is empty are deferred as long as (time waited so far) + (time left of the current
fine-tuning iteration; of a whole one if none has begun) does not exceed the deferral bound. So training gets whole
iterations, and requests start in batches. If the bound would be exceeded, requests start at once: the layer steps done
so far are kept, so waiting longer would gain nothing.

New requests join a running batch at once, as in FineInfer's public code: the training waits for the batch to end
anyhow. Requests that have run before are never deferred: a preemption must not make an answer pause for the training.
"""

from __future__ import annotations

from typing import Protocol

from service.core.iteration import IterationPlan


class TrainingPolicy(Protocol):
    """Asked only while there is a training that could run."""

    def admits(self, waited_s: float, step_s: float) -> bool:
        """Whether to start waiting requests now (True), or to go on with the training. No request runs. waited_s: how
        long the first one has waited. step_s: estimated time left of the fine-tuning iteration; infinite before
        anything was measured."""
        ...

    def slack_s(self, plan: IterationPlan) -> float:
        """For how many seconds layer steps may use the device between this iteration and the next one of the same
        requests."""
        ...


class DeferredBatching:
    """Trains only while the batch is empty. Bound 0: inference first; infinite: the training first."""

    def __init__(self, deferral_bound_s: float) -> None:
        self._bound_s = deferral_bound_s

    def admits(self, waited_s: float, step_s: float) -> bool:
        return waited_s + step_s > self._bound_s

    def slack_s(self, plan: IterationPlan) -> float:
        return 0.0
