"""How often the readers of streams are told of tokens: at once while the event loop has time, together where not.

Tokens that come together are cheap: a frame and its way into the socket cost more than all else that the host does for
a token (loadtest/log/host.md). But nobody should wait for a token that could be sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

BUSY = 0.5
"""The share of its time that the event loop may have work if every token is told at once. The rest is the engine's
thread's, which needs the same interpreter."""

COALESCED_WAKES_PER_S = 6_000
"""Of readers, where more would make the event loop busier than that. Each costs 15 to 20 us, half of it the socket's: a
tenth of a core."""

LEAST_COALESCED_S = 0.03

WINDOW_S = 0.05
"""The load is what was measured over at least so long."""


class StreamInterval(Protocol):
    """One question: for how long a stream that was told of tokens is left alone. Event-loop thread only."""

    def seconds(self, num_streams: int) -> float:
        """Where `num_streams` streams get tokens at a time; 0: each is told at once."""
        ...

    def note(self, num_ready: int, num_woken: int, now_s: float) -> None:
        """Of `num_ready` streams that have something for their readers, `num_woken` were told."""
        ...


class FixedInterval:
    """Always the same: the plain twin."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def seconds(self, num_streams: int) -> float:
        return self._seconds

    def note(self, num_ready: int, num_woken: int, now_s: float) -> None:
        pass


class IntervalByLoad:
    """At once while that keeps the event loop less than BUSY; else few enough to cost little.

    What waking one reader costs is what the event loop's thread computed in a window, over the readers that it woke:
    all other work of the event loop counts too, so who comes in keeps tokens together.

    busy_s: seconds that the calling thread has computed so far.
    """

    def __init__(self, now_s: float, busy_s: Callable[[], float] = time.thread_time) -> None:
        self._busy_s = busy_s
        self._window_began_s, self._busy_before_s = now_s, busy_s()
        self._num_ready = self._num_woken = 0
        self._is_at_once = True

    def seconds(self, num_streams: int) -> float:
        return 0.0 if self._is_at_once else max(LEAST_COALESCED_S, num_streams / COALESCED_WAKES_PER_S)

    def note(self, num_ready: int, num_woken: int, now_s: float) -> None:
        self._num_ready += num_ready
        self._num_woken += num_woken
        elapsed_s = now_s - self._window_began_s
        if elapsed_s < WINDOW_S:
            return
        busy_s = self._busy_s()
        share = (busy_s - self._busy_before_s) / elapsed_s
        self._is_at_once = share * self._num_ready <= BUSY * self._num_woken
        self._window_began_s, self._busy_before_s = now_s, busy_s
        self._num_ready = self._num_woken = 0
