"""How long a plan took to execute, as far as anybody could see."""

from __future__ import annotations

from typing import NamedTuple


class ExecutionTime(NamedTuple):
    """host_s: by the host's clock. is_exact: whether somebody saw when it ended; else neither this time nor that of the
    next plan says anything. compute_s: by the device's clock, which counts instead where there is one: it is exact, and
    leaves out what the host does. idle_s: nothing was asked of the device for so long before.
    """

    host_s: float
    is_exact: bool = True
    compute_s: float | None = None
    idle_s: float = 0.0

    @property
    def seconds(self) -> float:
        """By the clock that counts. More than 0, whatever a clock's ticks are."""
        return max(self.host_s if self.compute_s is None else self.compute_s, 1e-9)

    @property
    def rest_s(self) -> float:
        """Until the end of the plan the device computed nothing for so long, by its own clock."""
        return self.idle_s + max(0.0, self.host_s - (self.compute_s or 0.0))
