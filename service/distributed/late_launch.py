"""Pipelining for a device whose `launch` computes at once, as a CPU's does."""

from __future__ import annotations

from service.core.iteration import IterationPlan, IterationResult
from service.engine.ports import Executor, PendingIteration


class LateLaunch:
    """An Executor that runs a plan when its result is waited for.

    By then the stages before it know of this plan and of later ones, so they compute at the same time. On a GPU the
    stream gives the same effect.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def launch(self, plan: IterationPlan) -> PendingIteration:
        return _Late(self._executor, plan)


class _Late:
    def __init__(self, executor: Executor, plan: IterationPlan) -> None:
        self._executor = executor
        self._plan = plan

    def is_done(self) -> bool:
        return False

    def wait(self) -> IterationResult:
        return self._executor.launch(self._plan).wait()
