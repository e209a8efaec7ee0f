"""How late the event loop is: this delays every stream."""

from __future__ import annotations

import asyncio

from service.metrics.recorder import Recorder

EVERY_S = 0.25


async def watch_event_loop(recorder: Recorder) -> None:
    """Records by how much a short sleep takes too long; until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + EVERY_S
        await asyncio.sleep(EVERY_S)
        recorder.record_event_loop_lag(max(0.0, loop.time() - due_s))
