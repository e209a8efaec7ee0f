"""How hot a device is, as far as its recent work tells. A GPU lowers its clock under full load and raises it again only
some time later, so the same iteration takes longer right after a large one."""

from __future__ import annotations

import math

RECOVERY_S = 0.03
"""Time constant: after so long 63 % of the clock is regained (on one H200; the best fit of 15 to 60 ms)."""


class DeviceHeat:
    """A level from 0 (after a rest, or after decodes, which only wait for memory) to nearly 1 (after long prompt
    iterations). Engine thread only. Needs times by the device's clock; without one it stays 0."""

    def __init__(self) -> None:
        self._level = 0.0
        self._rest_s = 0.0
        self._shortest_s = math.inf

    @property
    def level(self) -> float:
        """The present level."""
        if self._rest_s:
            self._level *= math.exp(-self._rest_s / RECOVERY_S)
            self._rest_s = 0.0
        return self._level

    def rested(self, seconds: float) -> None:
        """The device was idle for so long."""
        self._rest_s += seconds

    def executed(self, seconds: float, *, is_decode: bool) -> None:
        """An iteration took `seconds`. is_decode: it had decodes only."""
        if is_decode:
            self.decoded(seconds)
        else:
            self.computed(seconds)

    def trained(self, seconds: float) -> None:
        """Layer steps of a training took `seconds`; they compute all the time."""
        kept = math.exp(-seconds / RECOVERY_S)
        self._level = self.level * kept + (1 - kept)

    def decoded(self, seconds: float) -> None:
        """An iteration of decodes took `seconds`. It counts as a rest."""
        self._rest_s += seconds
        if seconds < self._shortest_s:
            self._shortest_s = seconds

    def computed(self, seconds: float) -> None:
        """An iteration with prompts took `seconds`. What it took longer than the shortest iteration ever, which only
        waits for memory, counts as computing."""
        self._shortest_s = min(self._shortest_s, seconds)
        kept = math.exp(-seconds / RECOVERY_S)
        self._level = self.level * kept + (1 - self._shortest_s / seconds) * (1 - kept)


def slowed_s(heat: float, seconds: float) -> float:
    """The part of an iteration's `seconds` that it spends under the heat which there was at its start."""
    return heat * RECOVERY_S * -math.expm1(-seconds / RECOVERY_S) if heat else 0.0
