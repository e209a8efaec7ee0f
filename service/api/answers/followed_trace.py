"""A trace as clients get it: once, or again after each change until the call ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from service.api.call_trace import CallTrace
from service.engine.async_engine import AsyncEngine

LOOK_EVERY_S = 0.5
LOOK_UP_WITHIN_S = 1.0
"""Seconds. The engine answers between two iterations; if one takes longer, the trace shows what was known before."""

_MOST_OF_THE_TIME = 0.01
"""Fraction of the event loop's time that one follower may take: long traces are updated less often."""


async def look_up(trace: CallTrace, engine: AsyncEngine) -> None:
    """Update the trace from the engine, for the prompts that have not ended."""
    if request_ids := trace.running_ids:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_UP_WITHIN_S):
                trace.note_progress(await engine.stats_so_far(request_ids))


async def follow(trace: CallTrace, engine: AsyncEngine) -> AsyncIterator[str]:
    """The trace as JSON: at once, after each change, and last when its call has ended. The caller closes it when it
    stops reading."""
    told = ""
    with trace.watched() as ended:
        while True:
            ended.clear()
            await look_up(trace, engine)
            is_over, began_s = not trace.running_ids, time.perf_counter()
            json = trace.show().model_dump_json()
            pause_s = max(LOOK_EVERY_S, (time.perf_counter() - began_s) / _MOST_OF_THE_TIME)
            if json != told:
                told = json
                yield json
            if is_over:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await ended.wait()
