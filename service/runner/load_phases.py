"""Where the time of loading goes."""

from __future__ import annotations

import time


class LoadPhases:
    """Each phase begins where the one before ended, the first when this was made."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._seconds: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """What ran since the end of the phase before was this one. What a device still computes counts to the next."""
        now_s = time.monotonic()
        self._seconds[phase] = now_s - self._begun_s
        self._begun_s = now_s

    @property
    def seconds(self) -> dict[str, float]:
        return dict(self._seconds)
