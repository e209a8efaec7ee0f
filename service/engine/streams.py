"""From the engine's thread to the readers of requests: each request's outbox, and when its reader is told of what is
there. But for `publish` event-loop thread only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol, cast

from service.core.clock import Clock
from service.core.events import BatchTokens, FinalEvent, News, StreamEvent, one_by_one

logger = logging.getLogger(__name__)

BUSY = 0.5
"""The share of its time that the event loop may have work if every token is told at once. The rest is the engine's
thread's, which needs the same interpreter."""

COALESCED_WAKES_PER_S = 6_000
"""Of readers, where more would make the event loop busier than that. Each costs 15 to 20 us, half of it the socket's: a
tenth of a core."""

LEAST_COALESCED_S = 0.03

WINDOW_S = 0.05
"""The load is what was measured over at least so long."""

_GOLDEN_RATIO = 0.618034
_IDS_ONLY = {int}


class RequestStream:
    """Events are appended to `events`, where they may gather, and leave by `take`, all at once. Tokens of the decode
    batch stay in `rows`, from row `num_taken` on, and are the stream's at `place` of each; they are behind `events`.

    The reader is called, not woken: what a token costs would be less than the way into a task and out of it.
    due_s: where events are told at intervals, when the next ones may be, on the engine's clock; 0 before the first
    (see `StreamPacing`).
    """

    __slots__ = ("_reader", "due_s", "events", "num_taken", "place", "rows")

    def __init__(self) -> None:
        self.events: list[StreamEvent] = []
        self.rows: list[tuple[int, ...]] = []
        self.num_taken = 0
        self.place = 0
        self._reader: Callable[[], None] | None = None
        self.due_s = 0.0

    @property
    def has_events(self) -> bool:
        """Whether there is anything to take."""
        return bool(self.events) or len(self.rows) > self.num_taken

    def read_by(self, reader: Callable[[], None]) -> None:
        """`reader` is called from now on when there are events to take, amid those of other requests: it neither
        raises nor waits. It may leave them; then nobody calls before there are more."""
        self._reader = reader

    def wake(self) -> None:
        """Let the reader take what is there, if anything is."""
        if self._reader is not None and self.has_events:
            self._reader()

    def take(self) -> list[StreamEvent]:
        """Everything since the last call."""
        events, self.events = self.events, []
        num_taken, rows = self.num_taken, self.rows
        if len(rows) > num_taken:
            place, self.num_taken = self.place, len(rows)
            events += [row[place] for row in (rows[num_taken:] if num_taken else rows)]
        return events

    def take_ids(self) -> list[int] | None:
        """As `take`, if all are plain tokens; else None, and nothing is taken."""
        if self.events and set(map(type, self.events)) != _IDS_ONLY:
            return None
        return cast(list[int], self.take())

    def take_rows(self) -> None:
        """What is in the rows is among `events` from now on."""
        self.events = self.take()
        self.rows, self.num_taken = [], 0


class BatchStreams:
    """Streams that get one token each in every iteration: a row of tokens costs nothing for each of them until it takes
    its own, and only those that are due are looked at.

    request_ids: whose they are, as the engine names them in `BatchTokens`.
    """

    def __init__(self, request_ids: Sequence[str], streams: Mapping[str, RequestStream]) -> None:
        self.request_ids = request_ids
        self.rows: list[tuple[int, ...]] = []
        self._streams = [(place, streams[each]) for place, each in enumerate(request_ids) if each in streams]
        self._turns = [(stream.due_s, place, stream) for place, stream in self._streams]
        heapify(self._turns)

    def add(self, token_ids: tuple[int, ...]) -> None:
        """One more token for each."""
        if not self.rows:
            for place, stream in self._streams:
                stream.rows, stream.num_taken, stream.place = self.rows, 0, place
        self.rows.append(token_ids)

    def give_tokens(self) -> None:
        """Give the streams what is theirs, so that other events may follow."""
        if self.rows:
            for _, stream in self._streams:
                stream.take_rows()
            self.rows = []

    def all(self) -> list[RequestStream]:
        """In the order of their places."""
        return [stream for _, stream in self._streams]

    def due(self, now_s: float, plan: Callable[[RequestStream], None]) -> list[RequestStream]:
        """Those that are due by now. plan: sets when a stream is due again."""
        due, passed, turns = list[RequestStream](), list[tuple[float, int, RequestStream]](), self._turns
        while turns and turns[0][0] <= now_s:
            _, place, stream = heappop(turns)
            if stream.due_s <= now_s:  # else it had its turn elsewhere
                plan(stream)
                due.append(stream)
            passed.append((stream.due_s, place, stream))
        for turn in passed:
            heappush(turns, turn)
        return due


class StreamInterval(Protocol):
    """One question: for how long a stream that was told of tokens is left alone. Event-loop thread only."""

    def seconds(self, num_streams: int) -> float:
        """Where `num_streams` streams get tokens at a time; 0: each is told at once."""
        ...

    def note(self, num_ready: int, num_woken: int, now_s: float) -> None:
        """Of `num_ready` streams that have something for their readers, `num_woken` were told."""
        ...


class FixedInterval:
    """Always the same: the plain twin."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def seconds(self, num_streams: int) -> float:
        return self._seconds

    def note(self, num_ready: int, num_woken: int, now_s: float) -> None:
        pass


class IntervalByLoad:
    """At once while that keeps the event loop less than BUSY; else few enough to cost little.

    What waking one reader costs is what the event loop's thread computed in a window, over the readers that it woke:
    all other work of the event loop counts too, so who comes in keeps tokens together.

    busy_s: seconds that the calling thread has computed so far.
    """

    def __init__(self, now_s: float, busy_s: Callable[[], float] = time.thread_time) -> None:
        self._busy_s = busy_s
        self._window_began_s, self._busy_before_s = now_s, busy_s()
        self._num_ready = self._num_woken = 0
        self._is_at_once = True

    def seconds(self, num_streams: int) -> float:
        return 0.0 if self._is_at_once else max(LEAST_COALESCED_S, num_streams / COALESCED_WAKES_PER_S)

    def note(self, num_ready: int, num_woken: int, now_s: float) -> None:
        self._num_ready += num_ready
        self._num_woken += num_woken
        elapsed_s = now_s - self._window_began_s
        if elapsed_s < WINDOW_S:
            return
        busy_s = self._busy_s()
        share = (busy_s - self._busy_before_s) / elapsed_s
        self._is_at_once = share * self._num_ready <= BUSY * self._num_woken
        self._window_began_s, self._busy_before_s = now_s, busy_s
        self._num_ready = self._num_woken = 0


class StreamPacing:
    """While the interval is 0, every event is told at once. Else a stream's first event and its last are, and those
    between together, each stream at its own time within the interval.

    streams: those that are open, by request id; whoever owns them adds and removes.
    """

    def __init__(self, streams: Mapping[str, RequestStream], interval: StreamInterval, clock: Clock) -> None:
        self._streams = streams
        self._interval = interval
        self._clock = clock
        self._phase = 0.0
        self._sweep: asyncio.TimerHandle | None = None
        self._batch = BatchStreams((), {})

    def deliver(self, news: Sequence[News], now_s: float) -> list[str]:
        """Give the streams what iterations have to tell, now or together with later events. Those of streams that are
        gone are dropped. Returns the ids of the requests that have ended with them.

        All events are where they belong before the first reader is called.
        """
        if len(news) == 1 and isinstance(news[0], BatchTokens):
            self._deliver_batch(news[0], now_s)
            return []
        return self._deliver_each(news, now_s)

    def _deliver_batch(self, tokens: BatchTokens, now_s: float) -> None:
        """What most iterations tell."""
        batch = self._batch_of(tokens)
        num_ready = len(tokens.token_ids)
        interval_s = self._interval.seconds(num_ready)
        if not interval_s:
            due = batch.all()
        else:
            due = batch.due(now_s, lambda stream: self._plan(stream, now_s, interval_s))
            self._sweep_in(interval_s)
        for stream in due:
            stream.wake()
        self._interval.note(num_ready, len(due), now_s)

    def _batch_of(self, tokens: BatchTokens) -> BatchStreams:
        """The streams that these tokens are for, which have them now."""
        if tokens.request_ids is not self._batch.request_ids:
            self._batch.give_tokens()
            self._batch = BatchStreams(tokens.request_ids, self._streams)
        self._batch.add(tokens.token_ids)
        return self._batch

    def _deliver_each(self, news: Sequence[News], now_s: float) -> list[str]:
        """Event by event: the plain twin."""
        self._batch.give_tokens()
        streams, ended, due = self._streams, list[str](), list[RequestStream]()
        events = list(one_by_one(news))
        interval_s = self._interval.seconds(len(events))
        must_sweep = False
        for request_id, event in events:
            stream = streams.get(request_id)
            if stream is None:
                continue
            stream.events.append(event)
            if type(event) is FinalEvent:
                ended.append(request_id)
                due.append(stream)
            elif not interval_s:
                due.append(stream)
            elif stream.due_s <= now_s:
                self._plan(stream, now_s, interval_s)
                due.append(stream)
            else:
                must_sweep = True
        for stream in due:
            stream.wake()
        if must_sweep:
            self._sweep_in(interval_s)
        if ended:  # nobody keeps their streams any longer
            self._batch = BatchStreams((), {})
        self._interval.note(len(events), len(due), now_s)
        return ended

    def _plan(self, stream: RequestStream, now_s: float, interval_s: float) -> None:
        """When it is due again. The first pause of those that were told at once until now is shorter, by another share
        for each stream: so their times spread."""
        share = 1.0
        if stream.due_s < now_s - interval_s:
            share = self._phase = (self._phase + _GOLDEN_RATIO) % 1.0
        stream.due_s = now_s + share * interval_s

    def _sweep_in(self, interval_s: float) -> None:
        """After `interval_s`, look at the events that were left to wait, unless a look is planned already."""
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(interval_s, self._wake_due, interval_s)

    def _wake_due(self, interval_s: float) -> None:
        """Tell the readers that are due by now of events that wait; if there were any, look again in an interval."""
        self._sweep = None  # first: whatever fails here, the next events plan a look again
        now_s = self._clock.now_s()
        waiting = [stream for stream in self._streams.values() if stream.has_events]
        due = [stream for stream in waiting if stream.due_s <= now_s]
        for stream in due:
            self._plan(stream, now_s, interval_s)
            stream.wake()
        self._interval.note(0, len(due), now_s)
        if any(stream.due_s > now_s for stream in waiting):
            self._sweep_in(interval_s)


class StreamDelivery:
    """What the engine's thread tells, handed out on the event loop that runs when this is made.

    on_end(request ids, now): these requests have ended, and their streams know it. on_fault(fault): what was told
    cannot be handed out.
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
        """Engine thread. `deliver` it there."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, perhaps just now: nobody listens any more
            self._event_loop.call_soon_threadsafe(self._deliver_published, news)

    def deliver(self, news: Sequence[News]) -> None:
        """Hand it out now."""
        now_s = self._clock.now_s()
        ended = self._pacing.deliver(news, now_s)
        if ended:
            self._on_end(ended, now_s)

    def _deliver_published(self, news: list[News]) -> None:
        try:
            self.deliver(news)
        except Exception as fault:
            logger.critical("what the engine tells cannot be handed out", exc_info=fault)
            self._on_fault(fault)
