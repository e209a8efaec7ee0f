"""The outbox of one request, and those of the decode batch together. Event-loop thread only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import cast

from service.core.events import StreamEvent

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
