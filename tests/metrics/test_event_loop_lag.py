from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry

from service.metrics.event_loop_lag import EVERY_S, watch_event_loop
from service.metrics.instruments import Instruments
from service.metrics.recorder import Recorder


def test_a_blocked_loop_shows():
    registry = CollectorRegistry()
    recorder = Recorder(Instruments(registry))

    async def scene() -> None:
        watching = asyncio.create_task(watch_event_loop(recorder))
        await asyncio.sleep(EVERY_S / 2)
        time.sleep(2 * EVERY_S)
        await asyncio.sleep(EVERY_S / 10)
        watching.cancel()

    asyncio.run(scene())
    assert registry.get_sample_value("headrace_event_loop_lag_seconds_count") == 1
    assert (registry.get_sample_value("headrace_event_loop_lag_seconds_sum") or 0) > EVERY_S
