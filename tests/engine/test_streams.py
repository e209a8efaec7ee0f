from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import partial

from service.core.clock import ManualClock
from service.core.events import FinalEvent, Outcome, StreamEvent
from service.core.stats import RequestStats
from service.engine.streams import FEW_STREAMS, MAX_WAKES_PER_S, RequestStream, StreamPacing

TOKEN = 1
END = FinalEvent(Outcome.ABORTED, RequestStats(1, 0, 0, 1, 1, 0.0, None, None, 0.0, 0))
INTERVAL_S = 0.05


def test_events_that_gathered_come_together_and_in_order():
    stream = RequestStream()
    stream.events += range(3)
    assert stream.take() == [0, 1, 2]
    assert stream.take() == []


def test_a_reader_is_told_when_there_is_something_and_what_it_leaves_stays():
    stream, told = RequestStream(), list[int]()
    stream.events.append(1)
    stream.wake()
    stream.read_by(lambda: told.append(len(stream.events)))
    assert told == [], "what came before is for the reader to look at"
    stream.wake()
    stream.events.append(2)
    stream.wake()
    assert told == [1, 2]
    assert stream.take() == [1, 2]
    stream.wake()
    assert told == [1, 2], "there is nothing"


class Readers:
    """So many open streams, each with a reader that notes how many events came at a time."""

    def __init__(self, count: int) -> None:
        self.streams = [RequestStream() for _ in range(count)]
        self.open = {str(index): stream for index, stream in enumerate(self.streams)}
        self.batches: list[list[int]] = [[] for _ in range(count)]
        self.clock = ManualClock(100.0)
        self.pacing = StreamPacing(self.open, INTERVAL_S, self.clock)
        for index, stream in enumerate(self.streams):
            stream.read_by(partial(self._read, index))

    async def deliver(self, event: StreamEvent = TOKEN) -> list[str]:
        """One event to each stream, as after an iteration."""
        await asyncio.sleep(0)
        return self.pacing.deliver([(request_id, event) for request_id in self.open], self.clock.now_s())

    def _read(self, index: int) -> None:
        self.batches[index].append(len(self.streams[index].take()))


def play(count: int, scenario: Callable[[Readers], Awaitable[None]]) -> None:
    async def scene() -> None:
        await scenario(Readers(count))

    asyncio.run(scene())


def test_few_streams_get_every_event_at_once():
    async def scenario(readers: Readers) -> None:
        for _ in range(5):
            await readers.deliver()
        assert readers.batches == [[1] * 5] * FEW_STREAMS

    play(FEW_STREAMS, scenario)


def test_of_many_streams_the_first_event_and_the_last_go_at_once_and_the_others_together():
    async def scenario(readers: Readers) -> None:
        await readers.deliver()
        assert readers.batches == [[1]] * len(readers.streams)
        for _ in range(4):
            await readers.deliver()
        assert readers.batches == [[1]] * len(readers.streams), "it is not time yet"
        assert await readers.deliver(END) == list(readers.open)
        assert readers.batches == [[1, 5]] * len(readers.streams)

    play(FEW_STREAMS + 1, scenario)


def test_what_nothing_follows_is_delivered_in_time_too():
    async def scenario(readers: Readers) -> None:
        await readers.deliver()
        await readers.deliver()
        await asyncio.sleep(2 * INTERVAL_S)
        assert readers.batches == [[1]] * len(readers.streams), "the clock stands still"
        readers.clock.advance(INTERVAL_S)
        async with asyncio.timeout(10):
            while readers.batches != [[1, 1]] * len(readers.streams):
                await asyncio.sleep(INTERVAL_S / 5)

    play(FEW_STREAMS + 1, scenario)


def test_streams_that_began_together_do_not_stay_in_step():
    async def scenario(readers: Readers) -> None:
        await readers.deliver()
        due_s = sorted(stream.due_s for stream in readers.streams)
        gaps_s = [b - a for a, b in itertools.pairwise(due_s)]
        assert max(gaps_s) < INTERVAL_S / 10
        assert due_s[-1] - due_s[0] > INTERVAL_S / 2

    play(64, scenario)


def test_very_many_streams_are_woken_more_seldom_than_asked_for():
    async def scenario(readers: Readers) -> None:
        began_s = readers.clock.now_s()
        await readers.deliver()
        pauses_s = sorted(stream.due_s - began_s for stream in readers.streams)
        assert pauses_s[-1] > 0.9 * len(readers.streams) / MAX_WAKES_PER_S > 1.5 * INTERVAL_S

    play(int(2 * INTERVAL_S * MAX_WAKES_PER_S), scenario)


def test_events_of_streams_that_are_gone_are_dropped():
    async def scenario(readers: Readers) -> None:
        gone = readers.open.pop("0")
        assert readers.pacing.deliver([("0", END), ("1", END)], readers.clock.now_s()) == ["1"]
        assert not gone.events

    play(2, scenario)


def test_what_an_iteration_tells_one_stream_comes_together():
    async def scenario(readers: Readers) -> None:
        readers.pacing.deliver([("0", TOKEN), ("1", TOKEN), ("0", END)], readers.clock.now_s())
        assert readers.batches == [[2], [1]]

    play(2, scenario)
