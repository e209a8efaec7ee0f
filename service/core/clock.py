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
