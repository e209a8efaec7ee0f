"""The outbox of one request: events wait here until its HTTP handler takes them. Event-loop thread only."""

from __future__ import annotations

import asyncio

from service.core.events import StreamEvent


class RequestStream:
    """Events arrive by `put` and leave by `next_events`, all that have gathered at once."""

    def __init__(self) -> None:
        self._events: list[StreamEvent] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: StreamEvent) -> None:
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next_events(self) -> list[StreamEvent]:
        """Wait for at least one event; return everything since the last call. One caller at a time."""
        if not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events, self._events = self._events, []
        return events
