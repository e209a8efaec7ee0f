"""Ends the process when the engine hangs, or the event loop: whoever runs it can start it anew, nobody can wake it.

A device that does not answer blocks the engine's thread in a call that never returns; the task here, on the event loop,
tells of it. If the event loop itself stands still, say since a thread keeps the interpreter to itself, no Python runs
at all; then the process is ended with status 1 by means that need no interpreter (`HangGuard`). Either way the log
shows where every thread is, and neither way waits for whoever reads the log.
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
"""How often it looks within the time after which an iteration counts as hanging."""

TO_SHOW_STACKS_S = 1.0
"""From the moment when the guard shows the stacks to the end of the process."""

TO_END_S = 10.0
"""After a hang the streams are told and the process ends by itself, or it is ended."""

_STANDARD_ERROR = 2


class HangGuard:
    """Ends the process with status 1 when its time is over. It has to be renewed again and again.

    Both parts are faulthandler's and run without the interpreter. At SIGALRM, which a timer sends, its handler shows
    every thread's stack on standard error; if nobody reads that, whichever thread took the signal waits there for
    ever. Therefore a thread of faulthandler's own, which writes to the null device, ends the process a little later.
    A signal that is left to its default would not do: the first process of a container is not ended by it.
    """

    def __init__(self) -> None:
        self._devnull = os.open(os.devnull, os.O_WRONLY)
        faulthandler.register(signal.SIGALRM, file=_STANDARD_ERROR, all_threads=True)

    def renew(self, seconds: float) -> None:
        """From now on the stacks are shown after `seconds`, and the process ended TO_SHOW_STACKS_S later."""
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
    """Until cancelled, or until `on_hang(seconds)` has been called for an iteration that takes `hangs_after_s`; then
    the guard stays, for TO_END_S.

    An iteration's time is counted in looks, so a process that was stopped and goes on does not hang; if it was stopped
    for `hangs_after_s` it ends, since the event loop stood still.
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
    """Where every thread is, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    shown = (
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
    return "\n".join(shown)
