"""How the time of loading a model is spent."""

from __future__ import annotations

import time


class LoadPhases:
    """Each phase begins where the previous one ended; the first begins when this object is made."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._seconds: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """End the current phase under this name. Work still running on the device counts to the next one."""
        now_s = time.monotonic()
        self._seconds[phase] = now_s - self._begun_s
        self._begun_s = now_s

    @property
    def seconds(self) -> dict[str, float]:
        return dict(self._seconds)
