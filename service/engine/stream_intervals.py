"""How long a stream is left alone after a delivery (streams.py): always the same time, or by the event loop's load."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

BUSY = 0.5
"""How much of its time the event loop may be busy while every token is delivered at once. The engine's thread needs the
rest, since both use the same interpreter."""

COALESCED_WAKES_PER_S = 6_000
"""Reader calls per second while tokens are coalesced because the event loop was busier than BUSY. One call costs 15 to
20 us, half of it the socket's, so this is a tenth of a core."""

LEAST_COALESCED_S = 0.03


class StreamInterval(Protocol):
    """A policy. Event-loop thread only. is_at_once: every token is to be delivered at once; it changes in `note`."""

    is_at_once: bool

    def seconds(self, num_streams: int) -> float:
        """If not `is_at_once`: seconds between two deliveries to a stream while `num_streams` streams get tokens."""
        ...

    def note(self, num_ready: int, num_woken: int, seconds: float) -> None:
        """In the last `seconds`, `num_ready` streams had events, and the readers of `num_woken` were called. A stream
        counts once per iteration."""
        ...


class FixedInterval:
    """Always the same interval, or at once if it is 0: the plain twin."""

    def __init__(self, seconds: float) -> None:
        self.is_at_once = seconds == 0.0
        self._seconds = seconds

    def seconds(self, num_streams: int) -> float:
        return self._seconds

    def note(self, num_ready: int, num_woken: int, seconds: float) -> None:
        pass


class IntervalByLoad:
    """Deliver at once while that keeps the event loop below BUSY. Above, coalesce tokens down to COALESCED_WAKES_PER_S.

    The cost of one reader call is estimated as the event-loop thread's CPU time in a window, divided by the calls made
    in it. This includes all other work of the event loop, so new HTTP requests, too, make tokens coalesce.

    busy_s: returns the calling thread's CPU seconds so far.
    """

    def __init__(self, busy_s: Callable[[], float] = time.thread_time) -> None:
        self.is_at_once = True
        self._busy_s = busy_s
        self._busy_before_s = busy_s()

    def seconds(self, num_streams: int) -> float:
        return max(LEAST_COALESCED_S, num_streams / COALESCED_WAKES_PER_S)

    def note(self, num_ready: int, num_woken: int, seconds: float) -> None:
        busy_s = self._busy_s()
        share = (busy_s - self._busy_before_s) / seconds
        self.is_at_once = share * num_ready <= BUSY * num_woken
        self._busy_before_s = busy_s
