"""A stand-in for an iteration that could not be launched."""

from __future__ import annotations

from service.core.iteration import IterationResult


class FailedLaunch:
    """A PendingIteration (service/engine/ports.py) whose `wait` raises the fault, in launch order like any other."""

    def __init__(self, fault: Exception) -> None:
        self._fault = fault

    def is_done(self) -> bool:
        return True

    def wait(self) -> IterationResult:
        raise self._fault
