"""In the place of an iteration that could not be launched."""

from __future__ import annotations

from service.core.iteration import IterationResult


class FailedLaunch:
    """A PendingIteration (service/engine/ports.py): `wait` raises the fault in its turn, as that of an
    iteration that ran."""

    def __init__(self, fault: Exception) -> None:
        self._fault = fault

    def is_done(self) -> bool:
        return True

    def wait(self) -> IterationResult:
        raise self._fault
