"""Several iterations in flight where `launch` itself computes, as it does on a CPU."""

from __future__ import annotations

from service.core.iteration import IterationPlan, IterationResult
from service.engine.ports import Executor, PendingIteration


class LateLaunch:
    """An Executor that begins a plan when its result is waited for, by which the stages before it have been told of it
    and of those behind it. What a GPU's stream does for a GPU."""

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
