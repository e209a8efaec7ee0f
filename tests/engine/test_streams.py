from __future__ import annotations

import asyncio

from service.core.events import TokenEvent
from service.engine.streams import RequestStream


def test_events_that_gathered_come_together_and_in_order():
    async def scenario() -> None:
        stream = RequestStream()
        for token_id in range(3):
            stream.put(TokenEvent(0, token_id, None))
        assert [e.token_id for e in await stream.next_events()] == [0, 1, 2]

    asyncio.run(scenario())


def test_a_waiting_reader_is_woken_and_a_cancelled_one_loses_nothing():
    async def scenario() -> None:
        stream = RequestStream()
        reader = asyncio.create_task(stream.next_events())
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        reader = asyncio.create_task(stream.next_events())
        await asyncio.sleep(0)
        stream.put(TokenEvent(0, 1, None))
        stream.put(TokenEvent(0, 2, None))
        assert [e.token_id for e in await reader] == [1, 2]

    asyncio.run(scenario())
