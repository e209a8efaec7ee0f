"""How much a device has computed of late: a GPU under full load lowers its clock, and raises it again only some time
after. So the same iteration takes longer right behind a large one."""

from __future__ import annotations

import math

RECOVERY_S = 0.03
"""After so long the clock has made up for 63 % (one H200: of 15 to 60 ms, what explains its times best)."""


class DeviceHeat:
    """From 0, after a rest or decodes, which wait for memory, to nearly 1 behind long iterations of prompts. Engine
    thread only. By the device's clock: without one it stays 0."""

    def __init__(self) -> None:
        self._level = 0.0
        self._rest_s = 0.0
        self._shortest_s = math.inf

    @property
    def level(self) -> float:
        """By now."""
        if self._rest_s:
            self._level *= math.exp(-self._rest_s / RECOVERY_S)
            self._rest_s = 0.0
        return self._level

    def rested(self, seconds: float) -> None:
        """The device computed nothing for so long."""
        self._rest_s += seconds

    def executed(self, seconds: float, *, is_decode: bool) -> None:
        """An iteration took so long. is_decode: it only decoded."""
        if is_decode:
            self.decoded(seconds)
        else:
            self.computed(seconds)

    def trained(self, seconds: float) -> None:
        """Layer steps of a training took so long, which compute all the time."""
        kept = math.exp(-seconds / RECOVERY_S)
        self._level = self.level * kept + (1 - kept)

    def decoded(self, seconds: float) -> None:
        """An iteration only decoded, which is a rest."""
        self._rest_s += seconds
        if seconds < self._shortest_s:
            self._shortest_s = seconds

    def computed(self, seconds: float) -> None:
        """An iteration had prompts. The shortest iteration of all only waits for memory; by how much one takes longer,
        it computes."""
        self._shortest_s = min(self._shortest_s, seconds)
        kept = math.exp(-seconds / RECOVERY_S)
        self._level = self.level * kept + (1 - self._shortest_s / seconds) * (1 - kept)


def slowed_s(heat: float, seconds: float) -> float:
    """Of an iteration of so many seconds those that it spends under the heat that was there when it began."""
    return heat * RECOVERY_S * -math.expm1(-seconds / RECOVERY_S) if heat else 0.0
