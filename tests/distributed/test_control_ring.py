from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from service.distributed.control_ring import MessageKind, ReaderStalled, RingPlace, RingReader, RingWriter

SMALL = 4096


@pytest.fixture
def place() -> Iterator[RingPlace]:
    place = RingPlace.make(2, SMALL)
    yield place
    place.close()


def take_all(reader: RingReader, num: int, taken: list[bytes], hesitate: random.Random | None = None) -> None:
    for _ in range(num):
        message = reader.take(10.0)
        assert message is not None
        taken.append(message.payload)
        if hesitate is not None and hesitate.random() < 0.1:
            time.sleep(0.001)


def test_every_reader_takes_every_message_in_order_whole_and_once(place: RingPlace):
    """Of all sizes, those larger than the ring among them; readers that spin, sleep and hesitate."""
    random_ = random.Random(7)
    sizes = [random_.choice([0, 1, 7, 8, 100, 1000, 1023, 1024, 5000]) for _ in range(400)]
    messages = [random_.randbytes(size) for size in sizes]
    writer = RingWriter(place)
    taken: list[list[bytes]] = [[], []]
    readers = [RingReader(place, 1, spins_s=0.01), RingReader(place, 2)]
    threads = [
        threading.Thread(target=take_all, args=(reader, len(messages), into, random.Random(9)))
        for reader, into in zip(readers, taken, strict=True)
    ]
    for thread in threads:
        thread.start()
    for message in messages:
        writer.write(MessageKind.PLAN, message)
    for thread in threads:
        thread.join(30)
    assert taken == [messages, messages]


def test_a_message_says_its_kind_and_when_it_was_written(place: RingPlace):
    writer, reader = RingWriter(place), RingReader(place, 1)
    before_ns = time.monotonic_ns()
    writer.write(MessageKind.MASKS, b"bits")
    message = reader.take(0.0)
    assert message is not None
    assert (message.kind, message.payload) == (MessageKind.MASKS, b"bits")
    assert before_ns <= message.written_ns <= time.monotonic_ns()
    assert reader.take(0.0) is None


def test_who_waits_sleeps_until_it_is_woken(place: RingPlace):
    writer, reader = RingWriter(place), RingReader(place, 1)
    cpu_s = time.thread_time()
    assert reader.take(0.3) is None
    assert time.thread_time() - cpu_s < 0.1
    later = threading.Timer(0.2, writer.write, [MessageKind.PLAN, b"x"])
    later.start()
    message = reader.take(20.0)
    assert message is not None
    assert time.monotonic_ns() - message.written_ns < 5e9  # long before it would have given up
    later.join()


def test_a_reader_that_takes_nothing_is_found_and_named(place: RingPlace):
    writer, awake = RingWriter(place, waits_s=0.2), RingReader(place, 1)
    started_s = time.monotonic()
    with pytest.raises(ReaderStalled, match="rank 2"):
        for _ in range(SMALL):
            writer.write(MessageKind.PLAN, bytes(100))
            assert awake.take(1.0) is not None
    assert time.monotonic() - started_s >= 0.2


def test_a_dead_reader_is_not_waited_for(place: RingPlace):
    writer = RingWriter(place, is_alive=lambda rank: rank != 2, waits_s=1000.0)
    awake = RingReader(place, 1)
    with pytest.raises(ReaderStalled, match="rank 2"):
        for _ in range(SMALL):
            writer.write(MessageKind.PLAN, bytes(100))
            assert awake.take(1.0) is not None
