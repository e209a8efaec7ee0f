"""Ends the process when the engine hangs, or the event loop: whoever runs it can start it anew, nobody can wake it.

A device that does not answer blocks the engine's thread in a call that never returns; the task here, on the event loop,
tells of it. If the event loop itself stands still, say since a thread keeps the interpreter to itself, no Python runs
at all; then faulthandler's own thread, which needs no interpreter, ends the process with status 1. Either way the log
shows where every thread is.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
from collections.abc import Callable

from service.engine.async_engine import AsyncEngine

logger = logging.getLogger("headrace")

LOOKS = 10
"""How often it looks within the time after which an iteration counts as hanging."""

_STDERR = 2


async def watch_for_hangs(engine: AsyncEngine, hangs_after_s: float, on_hang: Callable[[float], None]) -> None:
    """Until cancelled, or until `on_hang(seconds)` has been called for an iteration that takes `hangs_after_s`.

    An iteration's time is counted in looks, so a process that was stopped and goes on does not hang; if it was stopped
    for `hangs_after_s` it ends, since the event loop stood still.
    """
    every_s = hangs_after_s / LOOKS
    since_s, num_looks = engine.busy_since_s, 0
    try:
        while num_looks < LOOKS:
            faulthandler.dump_traceback_later(hangs_after_s, exit=True, file=_STDERR)
            await asyncio.sleep(every_s)
            before_s, since_s = since_s, engine.busy_since_s
            num_looks = num_looks + 1 if since_s is not None and since_s == before_s else 0
        logger.critical("the engine hangs; every thread:")
        faulthandler.dump_traceback(file=_STDERR)
        on_hang(hangs_after_s)
    finally:
        faulthandler.cancel_dump_traceback_later()
