"""Time as an argument, so that scheduling can be tested with a clock moved by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds on a monotonic scale."""

    def now_s(self) -> float: ...


class MonotonicClock:
    """The real clock."""

    def now_s(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until `advance` is called."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds
