from __future__ import annotations

from service.core.events import TokenEvent
from service.engine.request_stream import RequestStream


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
