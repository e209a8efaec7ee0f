"""Returns memory to the operating system that large work has freed."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import Executor

_AFTER_S = 1.0


class FreedMemory:
    """malloc keeps memory below any live allocation: gigabytes after one long text. Event-loop thread.

    threads: where `trim` runs. It takes some milliseconds, during which other threads may wait for malloc. So it runs a
    moment after the work, when the result is freed too, and at most once in that time.
    """

    def __init__(self, threads: Executor, trim: Callable[[], None] | None = None, after_s: float = _AFTER_S) -> None:
        self._threads = threads
        self._trim = trim or _malloc_trim()
        self._after_s = after_s
        self._timer: asyncio.TimerHandle | None = None

    def trim_soon(self) -> None:
        """To be called after large work."""
        if self._timer is None and self._trim is not None:
            self._timer = asyncio.get_running_loop().call_later(self._after_s, self._trim_now, self._trim)

    def close(self) -> None:
        """To be called before `threads` end."""
        if self._timer is not None:
            self._timer.cancel()

    def _trim_now(self, trim: Callable[[], None]) -> None:
        self._timer = None
        self._threads.submit(trim)


def _malloc_trim() -> Callable[[], None] | None:
    """glibc's malloc_trim; None with another C library."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None else lambda: trim(0)
