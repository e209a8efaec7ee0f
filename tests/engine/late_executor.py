"""An executor that does all its work as late as the port allows: when it is waited for."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.baselines.plan_reader import PlanReader
from service.core.iteration import IterationPlan, IterationResult


@dataclass(frozen=True)
class LateIteration:
    executor: LateExecutor
    plan: IterationPlan

    def is_done(self) -> bool:
        return False

    def wait(self) -> IterationResult:
        return self.executor.execute(self.plan)


@dataclass(frozen=True)
class MaybeDone(LateIteration):
    """Reports the given answer when it is asked whether it is done."""

    done: bool

    def is_done(self) -> bool:
        return self.done


class LateExecutor:
    """Subclasses compute a plan, in which every sequence is scheduled singly."""

    def __init__(self) -> None:
        self._reader = PlanReader()

    def launch(self, plan: IterationPlan) -> LateIteration:
        return LateIteration(self, self.expand(plan))

    def expand(self, plan: IterationPlan) -> IterationPlan:
        """Every plan must pass through it, in order."""
        return self._reader.expand(plan)

    def execute(self, plan: IterationPlan) -> IterationResult:
        raise NotImplementedError
