"""Wakes an asyncio loop at a given time, to within a few hundredths of a millisecond unless the machine is
overloaded.

Event loops round timeouts to whole milliseconds, and an idle core takes about 0.2 ms to wake: a few per cent of a
time to first token of 15 ms. On Linux a timerfd on the monotonic clock wakes the loop a little early and the timer
busy-waits for the rest; elsewhere the loop's own timer is used.
"""

import asyncio
import ctypes
import heapq
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_EARLY_S = 0.0003


class _TimeSpec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("it_interval", _TimeSpec), ("it_value", _TimeSpec))


class PreciseTimer:
    """Calls back at given times of `time.perf_counter`. Owned by one running loop; close it before the loop
    ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._libc: Any = None
        self._fd = self._open_timerfd()

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Run `callback` in the loop at `when`; if that has passed, in the next turn of the loop."""
        heapq.heappush(self._due, (when, next(self._order), callback))
        if self._due[0][0] == when:
            self._arm(when)

    async def sleep_until(self, when: float) -> None:
        """Returns at `when`; does not suspend if that has passed."""
        if time.perf_counter() >= when:
            return
        reached: asyncio.Future[None] = self._loop.create_future()
        self.call_at(when, lambda: None if reached.done() else reached.set_result(None))
        await reached

    def close(self) -> None:
        """Drop pending callbacks and release the timer."""
        self._due.clear()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _open_timerfd(self) -> int | None:
        if not sys.platform.startswith("linux"):
            return None
        self._libc = ctypes.CDLL(None, use_errno=True)
        fd = int(self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        if fd < 0:
            return None
        self._loop.add_reader(fd, self._on_readable)
        return fd

    def _arm(self, when: float) -> None:
        if self._fd is None:
            self._loop.call_later(max(0.0, when - time.perf_counter()), self._run_due)
            return
        nanoseconds = max(1, int((when - _EARLY_S) * 1e9))
        seconds, rest = divmod(nanoseconds, 1_000_000_000)
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(seconds, rest))
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)

    def _on_readable(self) -> None:
        assert self._fd is not None
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._run_due()

    def _run_due(self) -> None:
        while self._due and self._due[0][0] <= time.perf_counter() + _EARLY_S:
            when, _, callback = heapq.heappop(self._due)
            _wait_out(when)
            callback()
        if self._due:
            self._arm(self._due[0][0])


def _wait_out(when: float) -> None:
    """Busy-wait until `when`, which is at most `_EARLY_S` away."""
    while time.perf_counter() < when:
        pass
