from __future__ import annotations

from service.core.events import TokenEvent
from service.engine.request_stream import BatchStreams, RequestStream


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
    stream.events.append(2)
    stream.wake()
    assert told == [1, 2]
    assert stream.take() == [1, 2]
    stream.wake()
    assert told == [1, 2], "there is nothing"


def make(count: int) -> tuple[BatchStreams, dict[str, RequestStream]]:
    streams = {str(number): RequestStream() for number in range(count)}
    return BatchStreams(tuple(streams), streams), streams


def test_each_stream_takes_its_own_tokens_when_it_likes():
    lockstep, streams = make(3)
    lockstep.add((1, 2, 3))
    assert streams["1"].take() == [2]
    lockstep.add((4, 5, 6))
    assert [stream.take() for stream in streams.values()] == [[1, 4], [5], [3, 6]]


def test_other_events_follow_once_all_is_settled():
    lockstep, streams = make(2)
    lockstep.give_tokens()
    lockstep.add((1, 2))
    lockstep.give_tokens()
    streams["0"].events.append(7)
    lockstep.add((3, 4))
    assert [stream.take() for stream in streams.values()] == [[1, 7, 3], [2, 4]]


def test_a_stream_that_is_gone_has_no_tokens_and_no_turn():
    _, streams = make(3)
    gone = streams.pop("1")
    lockstep = BatchStreams(("0", "1", "2"), streams)
    lockstep.add((1, 2, 3))
    assert not gone.has_events
    assert lockstep.all() == list(streams.values())
    assert lockstep.due(1.0, lambda stream: None) == list(streams.values())


def test_only_those_that_are_due_have_a_turn():
    lockstep, streams = make(3)

    def due(now_s: float) -> list[str]:
        due = lockstep.due(now_s, lambda stream: setattr(stream, "due_s", now_s + 10))
        return [name for name, stream in streams.items() if stream in due]

    assert due(1.0) == ["0", "1", "2"]
    assert due(2.0) == []
    streams["1"].due_s = 15.0  # it had a turn elsewhere
    assert due(11.0) == ["0", "2"]
    assert due(16.0) == ["1"]
    assert due(21.0) == ["0", "2"]


def test_whoever_is_always_due_has_one_turn_at_a_time():
    lockstep, streams = make(2)
    assert len(lockstep.due(1.0, lambda stream: None)) == len(streams)
