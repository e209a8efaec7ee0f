"""How long a plan took to execute, as far as it could be measured."""

from __future__ import annotations

from typing import NamedTuple


class ExecutionTime(NamedTuple):
    """host_s: by the host's clock. is_exact: whether its end was seen; if not, neither this host_s nor that of the next
    plan can be used. compute_s: by the device's clock; used in place of host_s if there is one, since it is exact and
    leaves out host work. idle_s: how long the device had nothing to do before this plan.
    """

    host_s: float
    is_exact: bool = True
    compute_s: float | None = None
    idle_s: float = 0.0

    @property
    def seconds(self) -> float:
        """By the device's clock, or else the host's. More than 0, however coarse the clock is."""
        return max(self.host_s if self.compute_s is None else self.compute_s, 1e-9)

    @property
    def rest_s(self) -> float:
        """How long the device was idle from the end of the previous plan to the end of this one, by its own clock."""
        return self.idle_s + max(0.0, self.host_s - (self.compute_s or 0.0))
