"""The outbox of one request. Event-loop thread only."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from service.core.events import StreamEvent

_IDS_ONLY = {int}


class RequestStream:
    """Events are appended to `events`, where they may gather, and leave by `take`, all at once. Tokens of
    the decode batch stay in `rows`, from row `num_taken` on, and are the stream's at `place` of each; they are behind
    `events`.

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
