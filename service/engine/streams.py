"""From the engine's thread to the readers of requests: the outbox of each request, and when its reader is called.
Event-loop thread only, except for `StreamDelivery.publish`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import cast

from service.core.clock import Clock
from service.core.events import FinalEvent, StreamEvent
from service.engine.coalescing import Coalescing, Turns
from service.engine.outbox import BatchTokens, News, one_by_one
from service.engine.stream_intervals import StreamInterval

logger = logging.getLogger(__name__)

WINDOW_S = 0.05
"""How long the counts are gathered that a StreamInterval is told, at least."""

_IDS_ONLY = {int}
_HAS_BEGUN = attrgetter("has_begun")


class RequestStream:
    """The outbox of one request. Events are appended to `events`, where they may gather; `take` removes them all.

    Tokens of the decode batch are not copied here one by one: they stay in `rows`, a list that all streams of the batch
    share. This stream's tokens are the entries at index `place`, from row `num_taken` on; they come after `events`.
    The reader is a plain callback, since waking a task for each token would cost more than the token's work.
    has_begun: the reader was called. due_s, is_told: as in `Coalesced`.
    """

    __slots__ = ("_reader", "due_s", "events", "has_begun", "is_told", "num_taken", "place", "rows")

    def __init__(self) -> None:
        self.events: list[StreamEvent] = []
        self.rows: list[tuple[int, ...]] = []
        self.num_taken = 0
        self.place = 0
        self._reader: Callable[[], None] | None = None
        self.is_told = False
        self.due_s = 0.0
        self.has_begun = False

    @property
    def has_events(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self.events) or len(self.rows) > self.num_taken

    def read_by(self, reader: Callable[[], None]) -> None:
        """Set the callback for new events. It runs between deliveries to other requests, so it must not raise or block.
        It is not called again until it has called `take`, so one that waits for its client costs nothing."""
        self._reader, self.is_told = reader, False

    def wake(self) -> None:
        """Call the reader if there are events to take and it was not told yet."""
        if not self.is_told and self._reader is not None and self.has_events:
            self.is_told = self.has_begun = True
            self._reader()

    def take(self) -> list[StreamEvent]:
        """Remove and return all events."""
        self.is_told = False
        events, self.events = self.events, []
        num_taken, rows = self.num_taken, self.rows
        if len(rows) > num_taken:
            place, self.num_taken = self.place, len(rows)
            events += [row[place] for row in (rows[num_taken:] if num_taken else rows)]
        return events

    def take_ids(self) -> list[int] | None:
        """As `take`, if all events are plain tokens; otherwise None, and nothing is removed."""
        if self.events and set(map(type, self.events)) != _IDS_ONLY:
            return None
        return cast(list[int], self.take())

    def take_rows(self) -> None:
        """Move the tokens from `rows` into `events`. The reader has not taken them by that."""
        is_told = self.is_told
        self.events = self.take()
        self.is_told = is_told
        self.rows, self.num_taken = [], 0


class BatchStreams:
    """Streams that get one token each in every iteration. Appending an iteration's row of tokens costs the same however
    many streams there are; each stream picks out its own when it is read, and only streams that are due are looked at.

    request_ids: the object in `BatchTokens.request_ids`, whose order gives the places. turns: for Coalescing.
    """

    def __init__(self, request_ids: Sequence[str], streams: Mapping[str, RequestStream]) -> None:
        self.request_ids = request_ids
        self.rows: list[tuple[int, ...]] = []
        self._streams = [(place, streams[each]) for place, each in enumerate(request_ids) if each in streams]
        self.turns = Turns(stream for _, stream in self._streams)

    def add(self, token_ids: tuple[int, ...]) -> None:
        """Append one token for every stream."""
        if not self.rows:
            for place, stream in self._streams:
                stream.rows, stream.num_taken, stream.place = self.rows, 0, place
        self.rows.append(token_ids)

    def give_tokens(self) -> None:
        """Move every stream's tokens into its `events`, so that other events can follow them."""
        if self.rows:
            for _, stream in self._streams:
                stream.take_rows()
            self.rows = []

    def all(self) -> list[RequestStream]:
        """All streams, in the order of their places."""
        return [stream for _, stream in self._streams]


class StreamPacing:
    """Decides when to deliver. While the interval is at once, every event is. Otherwise a stream's first event and its
    final event are, and the events between are coalesced.

    Streams that begin are read before the others: each reader takes its time, and a first token is awaited the most.

    streams: the open streams by request id. The owner adds and removes them.
    """

    def __init__(self, streams: Mapping[str, RequestStream], interval: StreamInterval, clock: Clock) -> None:
        self._streams = streams
        self._interval = interval
        self._coalescing = Coalescing(streams, clock, self._note)
        self._window_began_s = clock.now_s()
        self._num_ready = self._num_woken = 0  # in this window
        self._batch = BatchStreams((), {})

    def deliver(self, news: Sequence[News], now_s: float) -> list[str]:
        """Deliver events, now or later together with others. Events of streams that are gone are dropped. Returns the
        ids of the requests whose final event was among them.

        All events are in their outboxes before the first reader is called.
        """
        if len(news) == 1 and isinstance(news[0], BatchTokens):
            self._deliver_batch(news[0], now_s)
            return []
        return self._deliver_each(news, now_s)

    def _deliver_batch(self, tokens: BatchTokens, now_s: float) -> None:
        """The fast path: one BatchTokens, which is what most iterations give."""
        if tokens.request_ids is not self._batch.request_ids:
            self._batch.give_tokens()
            self._batch = BatchStreams(tokens.request_ids, self._streams)
        batch, num_ready = self._batch, len(tokens.token_ids)
        batch.add(tokens.token_ids)
        if self._interval.is_at_once:
            due = batch.all()
        else:
            due = self._coalescing.due(batch.turns, now_s, self._interval.seconds(num_ready))
        for stream in due:
            stream.wake()
        self._note(num_ready, len(due), now_s)

    def _deliver_each(self, news: Sequence[News], now_s: float) -> list[str]:
        """Event by event: the plain twin."""
        self._batch.give_tokens()
        streams, ended, due = self._streams, list[str](), list[RequestStream]()
        events = list(one_by_one(news))
        is_at_once, must_sweep = self._interval.is_at_once, False
        interval_s = 0.0 if is_at_once else self._interval.seconds(len(events))
        for request_id, event in events:
            stream = streams.get(request_id)
            if stream is None:
                continue
            stream.events.append(event)
            if type(event) is FinalEvent:
                ended.append(request_id)
                due.append(stream)
            elif is_at_once or self._coalescing.is_due(stream, now_s, interval_s):
                due.append(stream)
            else:
                must_sweep = True
        due.sort(key=_HAS_BEGUN)
        for stream in due:
            stream.wake()
        if must_sweep:
            self._coalescing.sweep_in(interval_s)
        if ended:  # drop the last references to their streams
            self._batch = BatchStreams((), {})
        self._note(len(events), len(due), now_s)
        return ended

    def _note(self, num_ready: int, num_woken: int, now_s: float) -> None:
        """Of `num_ready` streams that had events, `num_woken` had their turn."""
        self._num_ready += num_ready
        self._num_woken += num_woken
        elapsed_s = now_s - self._window_began_s
        if elapsed_s >= WINDOW_S:
            self._interval.note(self._num_ready, self._num_woken, elapsed_s)
            self._window_began_s, self._num_ready, self._num_woken = now_s, 0, 0


class StreamDelivery:
    """Delivers the engine thread's events on the event loop that is running when this is constructed.

    on_end(request ids, now): the final events of these requests were delivered. on_fault(fault): a delivery raised.
    """

    def __init__(
        self,
        pacing: StreamPacing,
        clock: Clock,
        on_end: Callable[[list[str], float], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._pacing = pacing
        self._clock = clock
        self._on_end = on_end
        self._on_fault = on_fault
        self._event_loop = asyncio.get_running_loop()

    def publish(self, news: list[News]) -> None:
        """Engine thread. Schedules `deliver` on the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, perhaps just now: no reader is left
            self._event_loop.call_soon_threadsafe(self._deliver_published, news)

    def deliver(self, news: Sequence[News]) -> None:
        """Deliver now. Event-loop thread."""
        now_s = self._clock.now_s()
        ended = self._pacing.deliver(news, now_s)
        if ended:
            self._on_end(ended, now_s)

    def _deliver_published(self, news: list[News]) -> None:
        try:
            self.deliver(news)
        except Exception as fault:
            logger.critical("the engine's events cannot be delivered", exc_info=fault)
            self._on_fault(fault)
