from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import service.process.log_writer
from service.process.log_writer import MAX_QUEUED_BYTES, LogWriter

PIPE_BYTES = 64 * 1024


@contextmanager
def a_log() -> Iterator[tuple[logging.Logger, LogWriter, int]]:
    """A logger of its own, and the end of the pipe at which its lines are read."""
    read_end, write_end = os.pipe()
    logger = logging.Logger("of a test")
    writer = LogWriter(write_end)
    writer.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(writer)
    try:
        yield logger, writer, read_end
    finally:
        os.close(write_end)
        os.close(read_end)


def read_available(descriptor: int) -> list[str]:
    """What is there, once something is."""
    return os.read(descriptor, 16 * MAX_QUEUED_BYTES).decode().splitlines()


def wait_until_blocked(writer: LogWriter) -> None:
    """The thread has taken all that is queued, and waits for a reader of it."""
    deadline_s = time.monotonic() + 10
    while not writer._queue.empty():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_lines_prints_and_tracebacks_come_in_order():
    with a_log() as (logger, writer, read_end):
        with writer:
            logger.info("one")
            print("two", "\udfff", file=sys.stderr)
            try:
                raise ValueError("three")
            except ValueError:
                logger.exception("failed")
            assert sys.stderr is not sys.__stderr__
        lines = read_available(read_end)
    assert lines[0] == "INFO one"
    assert lines[1] == "two \\udfff"
    assert lines[-1] == "ValueError: three"


def test_a_line_that_cannot_be_formatted_is_told_of_and_raises_nothing():
    with a_log() as (logger, writer, read_end):
        with writer:
            logger.info("%d", "no number")
            logger.info("next")
        lines = read_available(read_end)
    assert "--- Logging error ---" in lines
    assert lines[-1] == "INFO next"


def test_nobody_waits_for_a_reader_and_what_does_not_fit_is_told_of_where_it_is_missing():
    line = "x" * 1000
    with a_log() as (logger, writer, read_end):
        with writer:
            logger.info("y" * 2 * PIPE_BYTES)
            wait_until_blocked(writer)
            num_offered = 0
            while not writer.num_lost:
                logger.info(line)
                num_offered += 1
            for _ in range(99):
                logger.info(line)
            assert writer._num_queued - writer._num_written <= MAX_QUEUED_BYTES
            read: list[str] = []
            reader = threading.Thread(target=lambda: read.extend(read_until(read_end, "INFO last")))
            reader.start()
            deadline_s = time.monotonic() + 10
            while writer._num_written < writer._num_queued and time.monotonic() < deadline_s:
                time.sleep(0.001)
            logger.info("last")
            reader.join(10)
        assert writer.num_lost == 100
    kept = [text for text in read if text == f"INFO {line}"]
    assert len(kept) == num_offered - 1
    assert "were lost here" in read[-2]
    assert read[-2].endswith(": 100")
    assert read[-1] == "INFO last"


def read_until(descriptor: int, last: str) -> list[str]:
    with os.fdopen(os.dup(descriptor)) as log:
        lines = []
        for line in log:
            lines.append(line.rstrip("\n"))
            if lines[-1] == last:
                break
        return lines


def test_the_end_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service.process.log_writer, "LAST_WORDS_S", 0.1)
    with a_log() as (logger, writer, read_end):
        started_s = time.monotonic()
        with writer:
            logger.info("y" * 2 * PIPE_BYTES)
        assert time.monotonic() - started_s < 5
        assert writer._thread.is_alive()
        read_until(read_end, "INFO " + "y" * 2 * PIPE_BYTES)  # so that it ends
        writer._thread.join(10)


def test_a_closed_end_costs_lines_and_nothing_else():
    with a_log() as (logger, writer, read_end):
        hold = os.dup(read_end)
        with writer:
            os.dup2(os.open(os.devnull, os.O_RDONLY), read_end)
            os.close(hold)
            for number in range(3):
                logger.info("nobody reads %d", number)
                wait_until_blocked(writer)
    assert writer.num_lost == 3, "those that tell of lost ones do not count"


def test_a_descriptor_that_somebody_made_non_blocking_is_waited_for():
    with a_log() as (logger, writer, read_end):
        os.set_blocking(writer._descriptor, False)
        with writer:
            logger.info("y" * 3 * PIPE_BYTES)
            logger.info("last")
            assert read_until(read_end, "INFO last")[0] == "INFO " + "y" * 3 * PIPE_BYTES
    assert writer.num_lost == 0


def test_a_write_that_finds_no_memory_is_not_the_last(monkeypatch: pytest.MonkeyPatch):
    write, failing = service.process.log_writer._write_whole, iter([True])

    def fail_once(descriptor: int, data: bytes) -> None:
        if next(failing, False):
            raise MemoryError
        write(descriptor, data)

    monkeypatch.setattr(service.process.log_writer, "_write_whole", fail_once)
    with a_log() as (logger, writer, read_end), writer:
        logger.warning("one")
        deadline_s = time.monotonic() + 10
        while writer.num_lost == 0 and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert writer.is_alive
        logger.warning("two")
        assert "WARNING two" in read_available(read_end)
