"""Deferred continuous batching (FineInfer, section 2.4): whether requests wait for a training, or it for them.

A request that finds the batch empty is left to wait while what it has waited and what is left of the fine-tuning
iteration under way (between two: a whole one) do not exceed the deferral bound together. So training gets whole
iterations, and requests come in batches. An iteration that the bound would cut short is cut at once: its layer steps so
far are kept, and waiting for more of them would spare it nothing.

Newcomers join a batch that runs at once, as FineInfer's public code lets them: the training waits for its end anyhow.
Nor does anybody wait who has run before: a preemption is no reason to stop in mid-answer.
"""

from __future__ import annotations

from typing import Protocol

from service.core.iteration import IterationPlan


class TrainingPolicy(Protocol):
    """Asked only while a training could run."""

    def admits(self, waited_s: float, step_s: float) -> bool:
        """Whether waiting requests start now, of which none runs and the first has waited so long; else the training
        goes on. step_s: what is left of the fine-tuning iteration, as estimated; infinite before anything is known."""
        ...

    def slack_s(self, plan: IterationPlan) -> float:
        """Seconds for which the training may have the device behind this iteration, before the next one of the same
        requests."""
        ...


class DeferredBatching:
    """Training on an empty batch only. A bound of 0 is inference first, an infinite one the job first."""

    def __init__(self, deferral_bound_s: float) -> None:
        self._bound_s = deferral_bound_s

    def admits(self, waited_s: float, step_s: float) -> bool:
        return waited_s + step_s > self._bound_s

    def slack_s(self, plan: IterationPlan) -> float:
        return 0.0
