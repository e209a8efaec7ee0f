"""The outbox of one request, and when its reader is woken. Event-loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from service.core.clock import Clock
from service.core.events import FinalEvent, StreamEvent, TokenEvent

FEW_STREAMS = 16
_GOLDEN_RATIO = 0.618034


class RequestStream:
    """Events arrive by `put` and leave by `next_events`, all that have gathered at once.

    due_s: earlier than that, more events alone do not wake the reader (see `StreamPacing`).
    """

    __slots__ = ("_events", "_waiter", "due_s")

    def __init__(self) -> None:
        self._events: list[StreamEvent] = []
        self._waiter: asyncio.Future[None] | None = None
        self.due_s = 0.0

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def put(self, event: StreamEvent) -> None:
        """Keep the event for the reader, who may sleep on."""
        self._events.append(event)

    def wake(self) -> None:
        """Let the reader take what is there."""
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


class StreamPacing:
    """Tokens that come together are cheap: waking a reader and writing to its socket cost more than all else that the
    host does for a token (loadtest/LOG.md).

    While few streams are open, every event wakes its reader. Else a stream's first event and its last do, and those
    between at most every `interval_s`, each stream at its own time within the interval.
    """

    def __init__(self, streams: Collection[RequestStream], interval_s: float, clock: Clock) -> None:
        self._streams = streams
        self._interval_s = interval_s
        self._clock = clock
        self._phase = 0.0
        self._sweep: asyncio.TimerHandle | None = None

    def deliver(self, stream: RequestStream, event: StreamEvent, now_s: float) -> None:
        """Give the stream an event, now or together with later ones."""
        stream.put(event)
        if now_s < stream.due_s and self._sweep is not None and isinstance(event, TokenEvent):
            return
        if len(self._streams) <= FEW_STREAMS or isinstance(event, FinalEvent):
            stream.wake()
        elif stream.due_s <= now_s:
            self._wake(stream, now_s)
        elif self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._interval_s, self._wake_due)

    def _wake(self, stream: RequestStream, now_s: float) -> None:
        """The pause after the first event is shorter, by another share for each stream: so their times spread."""
        share = 1.0
        if stream.due_s == 0.0:
            share = self._phase = (self._phase + _GOLDEN_RATIO) % 1.0
        stream.due_s = now_s + share * self._interval_s
        stream.wake()

    def _wake_due(self) -> None:
        """For events that no later one of the same stream has taken along."""
        now_s = self._clock.now_s()
        waiting = [stream for stream in self._streams if stream.has_events]
        for stream in waiting:
            if stream.due_s <= now_s:
                self._wake(stream, now_s)
        again = any(stream.due_s > now_s for stream in waiting)
        self._sweep = asyncio.get_running_loop().call_later(self._interval_s, self._wake_due) if again else None
