"""Coalesced deliveries: a stream gets the events of several iterations at once, each stream at times of its own.
Event-loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from service.core.clock import Clock

_GOLDEN_RATIO = 0.618034


class Coalesced(Protocol):
    """A stream. due_s: the engine-clock time from which its next delivery may be made; 0 before the first. is_told: its
    reader was called and has not taken the events yet."""

    due_s: float
    is_told: bool

    @property
    def has_events(self) -> bool: ...

    def wake(self) -> None: ...


Stream = TypeVar("Stream", bound=Coalesced)


class Turns(Generic[Stream]):
    """Streams by the time at which each is due, so that only those that are due are looked at."""

    def __init__(self, streams: Iterable[Stream]) -> None:
        self._turns = [(stream.due_s, place, stream) for place, stream in enumerate(streams)]
        heapify(self._turns)

    def due(self, now_s: float, plan: Callable[[Stream], None]) -> list[Stream]:
        """The streams that are due at `now_s`. plan: called for each of them, to set its next `due_s`."""
        due, passed, turns = list[Stream](), list[tuple[float, int, Stream]](), self._turns
        while turns and turns[0][0] <= now_s:
            _, place, stream = heappop(turns)
            if stream.due_s <= now_s:  # else it was delivered elsewhere meanwhile
                plan(stream)
                due.append(stream)
            passed.append((stream.due_s, place, stream))
        for turn in passed:
            heappush(turns, turn)
        return due


class Coalescing:
    """Decides who is due. Events that nothing follows are delivered in time, too.

    streams: the open streams by request id. note(num_ready, num_woken, now): told how many readers were called because
    their time had come, not because of new events.
    """

    def __init__(self, streams: Mapping[str, Coalesced], clock: Clock, note: Callable[[int, int, float], None]) -> None:
        self._streams = streams
        self._clock = clock
        self._note = note
        self._phase = 0.0
        self._sweep: asyncio.TimerHandle | None = None

    def due(self, turns: Turns[Stream], now_s: float, interval_s: float) -> list[Stream]:
        """Those of `turns`, which all have events, that get them now. The others get theirs within `interval_s`."""
        due = turns.due(now_s, lambda stream: self._plan(stream, now_s, interval_s))
        self.sweep_in(interval_s)
        return due

    def is_due(self, stream: Coalesced, now_s: float, interval_s: float) -> bool:
        """Whether the stream gets its events now. If not, call `sweep_in`."""
        if stream.due_s > now_s:
            return False
        self._plan(stream, now_s, interval_s)
        return True

    def sweep_in(self, interval_s: float) -> None:
        """Deliver events left waiting after `interval_s`, unless that is scheduled already."""
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(interval_s, self._wake_due, interval_s)

    def _plan(self, stream: Coalesced, now_s: float, interval_s: float) -> None:
        """Set when the stream is due again. For a stream that was delivered at once until now, the first pause is
        shortened by a fraction that differs from stream to stream, so that their times spread over the interval."""
        share = 1.0
        if stream.due_s < now_s - interval_s:
            share = self._phase = (self._phase + _GOLDEN_RATIO) % 1.0
        stream.due_s = now_s + share * interval_s

    def _wake_due(self, interval_s: float) -> None:
        """Call the readers that are due and have events to be told of. If others wait, schedule the next call."""
        self._sweep = None  # first, so that after an exception below the next events schedule a sweep again
        now_s = self._clock.now_s()
        waiting = [stream for stream in self._streams.values() if stream.has_events and not stream.is_told]
        due = [stream for stream in waiting if stream.due_s <= now_s]
        for stream in due:
            self._plan(stream, now_s, interval_s)
            stream.wake()
        self._note(0, len(due), now_s)
        if any(stream.due_s > now_s for stream in waiting):
            self.sweep_in(interval_s)
