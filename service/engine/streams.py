"""The outbox of one request, and when its reader is told. Event-loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from service.core.clock import Clock
from service.core.events import Addressed, FinalEvent, StreamEvent

FEW_STREAMS = 16
MAX_WAKES_PER_S = 6_000
"""Of readers in the middle of their streams. Each costs 15 to 20 us, half of it the socket's: a tenth of a core."""

_GOLDEN_RATIO = 0.618034


class RequestStream:
    """Events are appended to `events`, where they may gather, and leave by `take`, all at once.

    The reader is called, not woken: what a token costs would be less than the way into a task and out of it.
    due_s: earlier than that, more events alone are not told to the reader (see `StreamPacing`).
    """

    __slots__ = ("_reader", "due_s", "events")

    def __init__(self) -> None:
        self.events: list[StreamEvent] = []
        self._reader: Callable[[], None] | None = None
        self.due_s = 0.0

    def read_by(self, reader: Callable[[], None]) -> None:
        """`reader` is called from now on when there are events to take, amid those of other requests: it neither
        raises nor waits. It may leave them; then nobody calls before there are more."""
        self._reader = reader

    def wake(self) -> None:
        """Let the reader take what is there, if anything is."""
        if self.events and self._reader is not None:
            self._reader()

    def take(self) -> list[StreamEvent]:
        """Everything since the last call."""
        events, self.events = self.events, []
        return events


class StreamPacing:
    """Tokens that come together are cheap: a frame and its way into the socket cost more than all else that the host
    does for a token (loadtest/LOG.md).

    While few streams are open, every event is told at once. Else a stream's first event and its last are, and those
    between at most every `interval_s`, each stream at its own time within the interval; more seldom where so many
    streams get tokens that this would be too much (MAX_WAKES_PER_S).

    streams: those that are open, by request id; whoever owns them adds and removes.
    """

    def __init__(self, streams: Mapping[str, RequestStream], interval_s: float, clock: Clock) -> None:
        self._streams = streams
        self._interval_s = interval_s
        self._clock = clock
        self._phase = 0.0
        self._sweep: asyncio.TimerHandle | None = None

    def deliver(self, events: Sequence[Addressed], now_s: float) -> list[str]:
        """Give the streams an iteration's events, now or together with later ones. Those of streams that are gone are
        dropped. Returns the ids of the requests that have ended with them.

        All events are where they belong before the first reader is called.
        """
        streams, ended, due = self._streams, list[str](), list[RequestStream]()
        is_few, must_sweep = len(streams) <= FEW_STREAMS, False
        interval_s = max(self._interval_s, len(events) / MAX_WAKES_PER_S) if self._interval_s else 0.0
        for request_id, event in events:
            stream = streams.get(request_id)
            if stream is None:
                continue
            stream.events.append(event)
            if type(event) is FinalEvent:
                ended.append(request_id)
                due.append(stream)
            elif is_few:
                due.append(stream)
            elif stream.due_s <= now_s:
                self._plan(stream, now_s, interval_s)
                due.append(stream)
            else:
                must_sweep = True
        for stream in due:
            stream.wake()
        if must_sweep and self._sweep is None:
            self._sweep_in(interval_s)
        return ended

    def _plan(self, stream: RequestStream, now_s: float, interval_s: float) -> None:
        """When it is due again. The pause after the first event is shorter, by another share for each stream: so their
        times spread."""
        share = 1.0
        if stream.due_s == 0.0:
            share = self._phase = (self._phase + _GOLDEN_RATIO) % 1.0
        stream.due_s = now_s + share * interval_s

    def _sweep_in(self, interval_s: float) -> None:
        self._sweep = asyncio.get_running_loop().call_later(interval_s, self._wake_due, interval_s)

    def _wake_due(self, interval_s: float) -> None:
        """For events that no later one of the same stream has taken along."""
        now_s = self._clock.now_s()
        waiting = [stream for stream in self._streams.values() if stream.events]
        for stream in waiting:
            if stream.due_s <= now_s:
                self._plan(stream, now_s, interval_s)
                stream.wake()
        self._sweep = None
        if any(stream.due_s > now_s for stream in waiting):
            self._sweep_in(interval_s)
