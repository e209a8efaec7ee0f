from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from service.core.events import FinalEvent, Outcome, StreamEvent, TokenEvent
from service.core.stats import RequestStats
from service.engine.outbox import BatchTokens, News, one_by_one
from service.engine.stream_intervals import FixedInterval
from service.engine.streams import WINDOW_S, BatchStreams, RequestStream, StreamPacing
from tests.manual_clock import ManualClock

TOKEN = 1
END = FinalEvent(Outcome.ABORTED, RequestStats(1, 0, 0, 1, 1, 0.0, None, None, 0.0, 0))
INTERVAL_S = 0.05
MANY = 17


def test_events_that_gathered_come_together_and_in_order():
    stream = RequestStream()
    stream.events += range(3)
    assert stream.take() == [0, 1, 2]
    assert stream.take() == []


def test_tokens_in_rows_are_behind_the_events_and_are_taken_once():
    stream = RequestStream()
    stream.events += [1, 2]
    stream.rows, stream.place = [(10, 11), (20, 21)], 1
    assert stream.has_events
    assert stream.take() == [1, 2, 11, 21]
    assert not stream.has_events
    stream.rows.append((30, 31))
    assert stream.has_events
    stream.take_rows()
    stream.events.append(3)
    assert stream.take() == [31, 3]
    assert stream.take() == []


def test_ids_are_taken_if_there_is_nothing_else():
    stream = RequestStream()
    stream.rows = [(4,)]
    assert stream.take_ids() == [4]
    stream.events += [1, 2]
    stream.rows.append((5,))
    assert stream.take_ids() == [1, 2, 5]
    stream.events += [1, TokenEvent(0, 2, None)]
    assert stream.take_ids() is None
    assert stream.take() == [1, TokenEvent(0, 2, None)]


def test_a_reader_is_told_when_there_is_something_and_what_it_leaves_stays():
    stream, told = RequestStream(), list[int]()
    stream.events.append(1)
    stream.wake()
    stream.read_by(lambda: told.append(len(stream.events)))
    assert told == [], "what came before is for the reader to look at"
    stream.wake()
    assert told == [1]
    assert stream.take() == [1]
    stream.wake()
    assert told == [1], "there is nothing"


def test_a_reader_that_takes_nothing_is_told_once_until_it_does():
    stream, told = RequestStream(), list[int]()
    stream.read_by(lambda: told.append(len(stream.events)))
    for _ in range(3):
        stream.events.append(1)
        stream.wake()
    stream.rows, stream.place = [(2,)], 0
    stream.take_rows()
    stream.wake()
    assert told == [1]
    assert stream.take() == [1, 1, 1, 2]
    stream.events.append(1)
    stream.wake()
    assert told == [1, 1]


def batch_of(count: int) -> tuple[BatchStreams, dict[str, RequestStream]]:
    streams = {str(number): RequestStream() for number in range(count)}
    return BatchStreams(tuple(streams), streams), streams


def test_each_stream_takes_its_own_tokens_when_it_likes():
    batch, streams = batch_of(3)
    batch.add((1, 2, 3))
    assert streams["1"].take() == [2]
    batch.add((4, 5, 6))
    assert [stream.take() for stream in streams.values()] == [[1, 4], [5], [3, 6]]


def test_other_events_follow_once_all_is_settled():
    batch, streams = batch_of(2)
    batch.give_tokens()
    batch.add((1, 2))
    batch.give_tokens()
    streams["0"].events.append(7)
    batch.add((3, 4))
    assert [stream.take() for stream in streams.values()] == [[1, 7, 3], [2, 4]]


def test_a_stream_that_is_gone_has_no_tokens_and_no_turn():
    _, streams = batch_of(3)
    gone = streams.pop("1")
    batch = BatchStreams(("0", "1", "2"), streams)
    batch.add((1, 2, 3))
    assert not gone.has_events
    assert batch.all() == list(streams.values())
    assert batch.turns.due(1.0, lambda stream: None) == list(streams.values())


def test_only_those_that_are_due_have_a_turn():
    batch, streams = batch_of(3)

    def due(now_s: float) -> list[str]:
        due = batch.turns.due(now_s, lambda stream: setattr(stream, "due_s", now_s + 10))
        return [name for name, stream in streams.items() if stream in due]

    assert due(1.0) == ["0", "1", "2"]
    assert due(2.0) == []
    streams["1"].due_s = 15.0  # it had a turn elsewhere
    assert due(11.0) == ["0", "2"]
    assert due(16.0) == ["1"]
    assert due(21.0) == ["0", "2"]


def test_whoever_is_always_due_has_one_turn_at_a_time():
    batch, streams = batch_of(2)
    assert len(batch.turns.due(1.0, lambda stream: None)) == len(streams)


class Readers:
    """Open streams, each with a reader that records how many events came at a time."""

    def __init__(self, count: int, interval_s: float = INTERVAL_S) -> None:
        self.streams = [RequestStream() for _ in range(count)]
        self.open = {str(index): stream for index, stream in enumerate(self.streams)}
        self.batches: list[list[int]] = [[] for _ in range(count)]
        self.clock = ManualClock(100.0)
        self.pacing = StreamPacing(self.open, FixedInterval(interval_s), self.clock)
        for index, stream in enumerate(self.streams):
            stream.read_by(partial(self._read, index))

    async def deliver(self, event: StreamEvent = TOKEN) -> list[str]:
        """Deliver one event to each stream, as after an iteration."""
        await asyncio.sleep(0)
        return self.pacing.deliver([(request_id, event) for request_id in self.open], self.clock.now_s())

    def _read(self, index: int) -> None:
        self.batches[index].append(len(self.streams[index].take()))


def play(count: int, scenario: Callable[[Readers], Awaitable[None]], interval_s: float = INTERVAL_S) -> None:
    async def scene() -> None:
        await scenario(Readers(count, interval_s))

    asyncio.run(scene())


def test_without_an_interval_every_event_is_told_at_once_however_many_streams_there_are():
    async def scenario(readers: Readers) -> None:
        for _ in range(5):
            await readers.deliver()
        assert readers.batches == [[1] * 5] * MANY

    play(MANY, scenario, interval_s=0.0)


def test_the_first_event_and_the_last_go_at_once_and_the_others_together():
    async def scenario(readers: Readers) -> None:
        await readers.deliver()
        assert readers.batches == [[1]] * len(readers.streams)
        for _ in range(4):
            await readers.deliver()
        assert readers.batches == [[1]] * len(readers.streams), "it is not time yet"
        assert await readers.deliver(END) == list(readers.open)
        assert readers.batches == [[1, 5]] * len(readers.streams)

    play(MANY, scenario)


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

    play(MANY, scenario)


def test_streams_that_began_together_do_not_stay_in_step():
    async def scenario(readers: Readers) -> None:
        await readers.deliver()
        due_s = sorted(stream.due_s for stream in readers.streams)
        gaps_s = [b - a for a, b in itertools.pairwise(due_s)]
        assert max(gaps_s) < INTERVAL_S / 10
        assert due_s[-1] - due_s[0] > INTERVAL_S / 2

    play(64, scenario)


def test_streams_that_were_told_at_once_until_now_do_not_get_into_step():
    async def scenario(readers: Readers) -> None:
        for _ in range(3):
            await readers.deliver()
        readers.clock.advance(10 * INTERVAL_S)
        await readers.deliver()
        due_s = [stream.due_s for stream in readers.streams]
        assert max(due_s) - min(due_s) > INTERVAL_S / 2

    play(64, scenario)


class Asked(FixedInterval):
    """An interval that records what it is asked and told."""

    def __init__(self, seconds: float = INTERVAL_S) -> None:
        super().__init__(seconds)
        self.asked: list[int] = []
        self.told: list[tuple[int, int, float]] = []

    def seconds(self, num_streams: int) -> float:
        self.asked.append(num_streams)
        return super().seconds(num_streams)

    def note(self, num_ready: int, num_woken: int, seconds: float) -> None:
        self.told.append((num_ready, num_woken, seconds))


def test_the_interval_is_told_of_every_iteration_in_windows():
    """How many streams had something, and how many of them were woken, then or later."""

    async def scenario(readers: Readers) -> None:
        interval = Asked()
        readers.pacing = StreamPacing(readers.open, interval, readers.clock)
        names = tuple(readers.open)
        readers.pacing.deliver([(name, TOKEN) for name in names], readers.clock.now_s())
        readers.clock.advance(0.8 * WINDOW_S)
        readers.pacing.deliver([BatchTokens(names, (1,) * MANY)], readers.clock.now_s())
        assert interval.asked == [MANY, MANY]
        assert interval.told == [], "the window is not over"
        readers.clock.advance(INTERVAL_S)
        async with asyncio.timeout(10):
            while not interval.told:
                await asyncio.sleep(INTERVAL_S / 5)
        assert interval.told == [(2 * MANY, 2 * MANY, pytest.approx(0.8 * WINDOW_S + INTERVAL_S))]
        readers.clock.advance(2 * WINDOW_S)
        readers.pacing.deliver([BatchTokens(names, (2,) * MANY)], readers.clock.now_s())
        assert interval.told[1:] == [(MANY, MANY, pytest.approx(2 * WINDOW_S))], "a window's counts are its own"

    play(MANY, scenario)


def test_an_interval_that_is_at_once_is_not_asked_how_long_it_is():
    async def scenario(readers: Readers) -> None:
        interval = Asked(0.0)
        readers.pacing = StreamPacing(readers.open, interval, readers.clock)
        names = tuple(readers.open)
        readers.pacing.deliver([(name, TOKEN) for name in names], readers.clock.now_s())
        readers.pacing.deliver([BatchTokens(names, (1,) * MANY)], readers.clock.now_s())
        assert interval.asked == []
        assert readers.batches == [[1, 1]] * MANY

    play(MANY, scenario)


@pytest.mark.parametrize("interval_s", [0.0, INTERVAL_S])
def test_streams_that_begin_are_read_before_the_others(interval_s: float):
    async def scenario(readers: Readers) -> None:
        late, order = {str(MANY): RequestStream(), str(MANY + 1): RequestStream()}, list[str]()
        readers.pacing.deliver([(request_id, TOKEN) for request_id in readers.open], readers.clock.now_s())
        readers.clock.advance(INTERVAL_S)
        readers.open.update(late)
        for request_id, stream in readers.open.items():
            stream.read_by(partial(order.append, request_id))
        await readers.deliver()
        begun = [request_id for request_id in readers.open if request_id not in late]
        assert order == [*late, *begun]

    play(MANY, scenario, interval_s)


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


def test_as_a_batch_or_one_by_one_the_same_comes_at_the_same_moments():
    """Random iterations of many streams, some of which start and end meanwhile, delivered both ways."""

    async def scenario(readers: Readers, *, as_batch: bool) -> tuple[list[list[int]], list[list[StreamEvent]]]:
        chance, read = random.Random(len(readers.streams)), [list[StreamEvent]() for _ in readers.streams]
        for index, stream in enumerate(readers.streams):
            stream.read_by(partial(note, readers, read, index))
        names = tuple(readers.open)
        for number in range(120):
            readers.clock.advance(0.004)
            tokens = tuple(range(100 * number, 100 * number + len(names)))
            news: list[News] = [BatchTokens(names, tokens)]
            if chance.random() < 0.1:
                news.insert(chance.randint(0, 1), (chance.choice(names), TokenEvent(0, 5, None)))
            if chance.random() < 0.02 and len(names) > 1:
                news.append((names[0], END))
            ended = readers.pacing.deliver(news if as_batch else list(one_by_one(news)), readers.clock.now_s())
            if ended:
                del readers.open[ended[0]]
                names = names[1:]
            await asyncio.sleep(0)
        return readers.batches, read

    def note(readers: Readers, read: list[list[StreamEvent]], index: int) -> None:
        events = readers.streams[index].take()
        readers.batches[index].append(len(events))
        read[index] += events

    for count, interval_s in ((MANY, INTERVAL_S), (3 * MANY, INTERVAL_S), (MANY, 0.0)):
        told = [asyncio.run(scenario(Readers(count, interval_s), as_batch=as_batch)) for as_batch in (True, False)]
        assert told[0] == told[1]


def test_there_are_no_looks_at_streams_whose_readers_take_nothing():
    async def scenario(readers: Readers) -> None:
        num_told = [0] * MANY

        def count(index: int) -> None:
            num_told[index] += 1

        for index, stream in enumerate(readers.streams[1:], 1):
            stream.read_by(partial(count, index))
        for _ in range(3):
            await readers.deliver()
        readers.clock.advance(2 * INTERVAL_S)
        async with asyncio.timeout(10):
            while readers.pacing._coalescing._sweep is not None:
                await asyncio.sleep(INTERVAL_S / 5)
        assert readers.batches[0] == [1, 2], "one that reads is told the rest"
        assert num_told == [0] + [1] * (MANY - 1)
        assert [len(stream.take()) for stream in readers.streams[1:]] == [3] * (MANY - 1)
        await readers.deliver()
        assert num_told == [0] + [2] * (MANY - 1)

    play(MANY, scenario)


def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch):
    async def scenario(readers: Readers) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        for _ in range(2):
            await readers.deliver()
        with monkeypatch.context() as patch:
            patch.delattr(readers.clock, "_now_s")
            await asyncio.sleep(2 * INTERVAL_S)
        await readers.deliver()
        readers.clock.advance(1.0)
        await asyncio.sleep(4 * INTERVAL_S)
        assert [sum(batch) for batch in readers.batches] == [3] * MANY

    play(MANY, scenario)
