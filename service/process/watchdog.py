"""Ends the process when the engine or the event loop hangs: a supervisor can restart it, but nothing can wake it.

A device that does not answer blocks the engine's thread in a call that never returns; the task here, on the event loop,
reports it. If the event loop itself stands still, for example because a thread keeps the GIL, no Python runs at all;
then `HangGuard` ends the process with status 1 without the interpreter. Either way the log shows every thread's stack,
and neither way waits for the log's reader.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable

from service.engine.async_engine import AsyncEngine

logger = logging.getLogger("headrace")

LOOKS = 10
"""Checks within the time after which an iteration counts as hanging."""

TO_SHOW_STACKS_S = 1.0
"""Seconds between the guard's show of the stacks and the end of the process."""

TO_END_S = 10.0
"""Seconds. After a hang the streams are told and the process ends by itself; after this time the guard ends it."""

_STANDARD_ERROR = 2


class HangGuard:
    """Ends the process with status 1 unless it is renewed in time, again and again.

    Both parts are faulthandler's and run without the interpreter. A timer sends SIGALRM, whose handler writes every
    thread's stack to standard error; if nobody reads that, the thread that took the signal blocks there for ever. So a
    thread of faulthandler's own, which writes to the null device, ends the process a little later. A signal with its
    default action would not do: it does not end the first process of a container.
    """

    def __init__(self) -> None:
        self._devnull = os.open(os.devnull, os.O_WRONLY)
        faulthandler.register(signal.SIGALRM, file=_STANDARD_ERROR, all_threads=True)

    def renew(self, seconds: float) -> None:
        """From now on the stacks are shown after `seconds`, and the process ends TO_SHOW_STACKS_S later."""
        faulthandler.dump_traceback_later(seconds + TO_SHOW_STACKS_S, exit=True, file=self._devnull)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def dismiss(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        faulthandler.cancel_dump_traceback_later()
        faulthandler.unregister(signal.SIGALRM)
        os.close(self._devnull)


async def watch_for_hangs(
    engine: AsyncEngine, hangs_after_s: float, on_hang: Callable[[float], None], guard: HangGuard
) -> None:
    """Runs until cancelled, or until an iteration has taken `hangs_after_s` and `on_hang(seconds)` was called; then the
    guard stays set, for TO_END_S.

    An iteration's time is counted in checks, so a process that was stopped and resumed does not count as hanging; if it
    was stopped for `hangs_after_s`, it ends, since the event loop stood still.
    """
    every_s = hangs_after_s / LOOKS
    since_s, num_looks = engine.busy_since_s, 0
    try:
        while num_looks < LOOKS:
            guard.renew(hangs_after_s)
            await asyncio.sleep(every_s)
            before_s, since_s = since_s, engine.busy_since_s
            num_looks = num_looks + 1 if since_s is not None and since_s == before_s else 0
    except asyncio.CancelledError:
        guard.dismiss()
        raise
    guard.renew(TO_END_S)
    logger.critical("the engine hangs; every thread:\n%s", _stacks())
    on_hang(hangs_after_s)


def _stacks() -> str:
    """Every thread's stack, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    shown = (
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
    return "\n".join(shown)
