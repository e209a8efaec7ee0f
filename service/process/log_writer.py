"""Writes the log to standard error without ever blocking the threads that log.

A pipe that is not read holds 64 KiB; then a write to it blocks, under the lock of its handler, and so does every thread
that logs. So lines go through a bounded queue to a thread of its own; lines that do not fit are dropped, counted and
reported later.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
import threading
import time
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple

STANDARD_ERROR = 2

MAX_QUEUED_BYTES = 1024 * 1024
"""Some ten thousand lines: how far a reader may lag behind."""

LAST_WORDS_S = 1.0
"""Seconds at the end in which queued lines are written."""

_GATHER_S = 0.02
"""Seconds. The thread waits for more lines before it writes, so that a busy log wakes it, and takes the interpreter
from the event loop, at most 50 times a second."""


class _Piece(NamedTuple):
    """num_told: for a line that reports lost lines, their number; else 0."""

    data: bytes
    num_told: int = 0


class LogWriter(logging.Handler):
    """A handler of log records, and a replacement for `sys.stderr` within its context (warnings, tracebacks, prints).

    Any thread may log; none waits for the reader. What native code writes to the descriptor bypasses it.
    """

    def __init__(self, descriptor: int = STANDARD_ERROR) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._queue: SimpleQueue[_Piece | None] = SimpleQueue()  # `put` may interrupt itself, as a finalizer's log does
        self._lock = threading.RLock()
        self._num_queued = 0  # total bytes; changed under the lock
        self._num_written = 0  # of them; changed by the thread only
        self._num_lost = self._num_told = 0  # total lines; changed under the lock
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._replaced = sys.stderr

    def __enter__(self) -> LogWriter:
        self._thread.start()
        self._replaced, sys.stderr = sys.stderr, _Text(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        sys.stderr = self._replaced
        self.finish()

    def finish(self) -> None:
        """Waits until everything is written, at most LAST_WORDS_S, and writes no more. The thread lives on if a write
        never returns. Any thread; idempotent."""
        self._queue.put(None)
        self._thread.join(LAST_WORDS_S)

    @property
    def is_alive(self) -> bool:
        """Whether new lines will be written."""
        return self._thread.is_alive()

    @property
    def num_lost(self) -> int:
        """Lines lost since the start."""
        return self._num_lost

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.offer(self.format(record) + "\n")
        except Exception:  # a message whose arguments do not fit must not hurt the code that logs it
            self.handleError(record)

    def offer(self, text: str) -> None:
        """Queues the text, or counts it as lost. Returns at once."""
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            if self._num_queued - self._num_written + len(data) > MAX_QUEUED_BYTES:
                self._num_lost += 1
                return
            self._tell_lost()
            self._put(_Piece(data))

    def _put(self, piece: _Piece) -> None:
        self._num_queued += len(piece.data)
        self._queue.put(piece)

    def _tell_lost(self) -> None:
        """To be called under the lock."""
        if untold := self._num_lost - self._num_told:
            self._num_told += untold
            message = "lines of the log were lost here, since nobody read them in time: %d"
            record = logging.LogRecord("headrace", logging.WARNING, __file__, 0, message, (untold,), None)
            self._put(_Piece(f"{self.format(record)}\n".encode(), untold))

    def _write_all(self) -> None:
        """The thread's main function."""
        is_last = False
        while not is_last:
            taken = [self._queue.get()]
            if taken[0] is not None:
                time.sleep(_GATHER_S)
            while not self._queue.empty():
                taken.append(self._queue.get())
            is_last = None in taken
            pieces = [piece for piece in taken if piece is not None]
            try:
                self._write(b"".join(piece.data for piece in pieces))
            except Exception:  # the other end is closed, a disk is full, memory is short: later lines may be written
                self._lose(pieces)

    def _lose(self, pieces: list[_Piece]) -> None:
        with self._lock:
            self._num_told -= sum(piece.num_told for piece in pieces)
            self._num_lost += sum(not piece.num_told for piece in pieces)
            self._num_written += sum(len(piece.data) for piece in pieces)

    def _write(self, data: bytes) -> None:
        _write_whole(self._descriptor, data)
        self._num_written += len(data)
        if self._queue.empty():
            with self._lock:
                self._tell_lost()


class _Text(io.TextIOBase):
    """`sys.stderr` while the log has a thread of its own."""

    encoding = "utf-8"

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def write(self, text: str) -> int:
        self._writer.offer(text)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STANDARD_ERROR

    def isatty(self) -> bool:
        return os.isatty(STANDARD_ERROR)


def _write_whole(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # another process that has the descriptor made it non-blocking
            select.select([], [descriptor], [])
