"""A clock for replaying a trace without sleeping: it runs while the system works and skips idle time.

Work takes its real, measured time, and arrival times are exact: what the replaying program does between iterations
takes no time, and a trace with a low rate takes no longer than its work.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WorkClock:
    """Seconds since it was made, without time outside `working`, plus skipped time. One thread."""

    def __init__(self, source: Callable[[], float] = time.perf_counter) -> None:
        self._source = source
        self._passed_s = 0.0
        self._since_s: float | None = None

    def now_s(self) -> float:
        """Implements the engine's clock (service/core/clock.py)."""
        return self._passed_s if self._since_s is None else self._passed_s + (self._source() - self._since_s)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Time passes inside this context. Must not be nested."""
        assert self._since_s is None
        self._since_s = self._source()
        try:
            yield
        finally:
            self._passed_s += self._source() - self._since_s
            self._since_s = None

    def skip_to(self, at_s: float) -> None:
        """Jump forward to this time. Never goes back."""
        self._passed_s = max(self._passed_s, at_s)
