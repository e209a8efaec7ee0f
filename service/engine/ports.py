"""What the engine needs from outside, as Protocols; `main.py` hands in the real ones, tests scripted ones."""

from __future__ import annotations

from typing import Protocol

from service.core.events import Outcome
from service.core.iteration_plan import IterationPlan
from service.core.iteration_result import IterationResult
from service.core.request import FinishReason
from service.core.stats import IterationStats, RequestStats


class Executor(Protocol):
    """Carries out plans. Called from the engine thread only, one plan at a time."""

    def execute(self, plan: IterationPlan) -> IterationResult:
        """Compute the plan. An exception here is a fault of the whole iteration, not of one request."""
        ...


class StatsSink(Protocol):
    """Receives facts. Called from the engine thread; must be quick and must not raise."""

    def record_iteration(self, stats: IterationStats) -> None: ...

    def record_request(
        self, stats: RequestStats, outcome: Outcome, finish_reasons: tuple[FinishReason, ...]
    ) -> None: ...
