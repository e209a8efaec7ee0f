"""Slows down reading a job's files while requests run."""

from __future__ import annotations

import time
from collections.abc import Callable

_PIECE_S = 0.001
_RESTS = 4
"""Rest this many times as long as the work took. The work is Python code, so the engine and the event loop have to wait
for the interpreter lock at every token meanwhile."""


class ReadingPace:
    """Called between pieces of the work, in the thread that does it.

    is_serving: whether requests run; the work then gets a fifth of the time, otherwise all of it. check: called each
    time, too; an exception from it ends the work.
    """

    def __init__(
        self,
        is_serving: Callable[[], bool],
        check: Callable[[], None],
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._is_serving = is_serving
        self._check = check
        self._now_s = now_s
        self._sleep = sleep
        self._since_s = now_s()

    def __call__(self) -> None:
        self._check()
        worked_s = self._now_s() - self._since_s
        if worked_s < _PIECE_S:
            return
        if self._is_serving():
            self._sleep(_RESTS * worked_s)
        self._since_s = self._now_s()
