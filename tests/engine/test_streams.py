from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from service.core.clock import ManualClock
from service.core.events import FinalEvent, Outcome, StreamEvent
from service.core.stats import RequestStats
from service.engine.streams import FEW_STREAMS, MAX_WAKES_PER_S, RequestStream, StreamPacing

TOKEN = 1
END = FinalEvent(Outcome.ABORTED, RequestStats(1, 0, 0, 1, 1, 0.0, None, None, 0.0, 0))
INTERVAL_S = 0.05


def test_events_that_gathered_come_together_and_in_order():
    async def scenario() -> None:
        stream = RequestStream()
        stream.events += range(3)
        assert await stream.next_events() == [0, 1, 2]

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
        stream.events += (1, 2)
        await asyncio.sleep(0)
        assert not reader.done(), "not woken yet"
        stream.wake()
        assert await reader == [1, 2]

    asyncio.run(scenario())


class Readers:
    """So many open streams, each with a reader that notes how many events came at a time."""

    def __init__(self, count: int) -> None:
        self.streams = [RequestStream() for _ in range(count)]
        self.open = {str(index): stream for index, stream in enumerate(self.streams)}
        self.batches: list[list[int]] = [[] for _ in range(count)]
        self.clock = ManualClock(100.0)
        self.pacing = StreamPacing(self.open, INTERVAL_S, self.clock)
        self.tasks = [asyncio.create_task(self._read(index)) for index in range(count)]

    async def deliver(self, event: StreamEvent = TOKEN) -> list[str]:
        """One event to each stream, as after an iteration."""
        await asyncio.sleep(0)
        ended = self.pacing.deliver([(request_id, event) for request_id in self.open], self.clock.now_s())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return ended

    async def _read(self, index: int) -> None:
        while True:
            self.batches[index].append(len(await self.streams[index].next_events()))


def play(count: int, scenario: Callable[[Readers], Awaitable[None]]) -> None:
    async def scene() -> None:
        readers = Readers(count)
        await scenario(readers)
        for task in readers.tasks:
            task.cancel()
        await asyncio.gather(*readers.tasks, return_exceptions=True)

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
