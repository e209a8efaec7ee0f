"""The log's way to standard error. Nobody has to read it: a write that does not return holds up one thread of its own.

A pipe that is not read takes 64 KiB, then a write to it blocks, under the lock of its handler, and so does every thread
that logs. Lines therefore go through a bounded queue; what does not fit is dropped, counted and told of later.
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
"""Some ten thousand lines: what a reader may be behind."""

LAST_WORDS_S = 1.0
"""At the end what is queued may take so long to be written."""

_GATHER_S = 0.02
"""The thread lets more lines come before it writes, so that a busy log wakes it, and takes the interpreter from the
event loop, 50 times a second at most."""


class _Piece(NamedTuple):
    """num_told: of a line that tells of lost ones, their number; else 0."""

    data: bytes
    num_told: int = 0


class LogWriter(logging.Handler):
    """A handler of log records, and what stands in for `sys.stderr` while it is entered (warnings, tracebacks, prints).

    Any thread may log; none waits for the reader. What native code writes to the descriptor goes past this.
    """

    def __init__(self, descriptor: int = STANDARD_ERROR) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._queue: SimpleQueue[_Piece | None] = SimpleQueue()  # `put` may interrupt itself, as a finalizer's log does
        self._lock = threading.RLock()
        self._num_queued = 0  # bytes, ever; changed under the lock
        self._num_written = 0  # of them; changed by the thread alone
        self._num_lost = self._num_told = 0  # lines, ever; changed under the lock
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
        """Waits until all is written, LAST_WORDS_S at most, and writes no more. The thread lives on if a write never
        returns. Any thread; may be called again."""
        self._queue.put(None)
        self._thread.join(LAST_WORDS_S)

    @property
    def is_alive(self) -> bool:
        """Whether what is logged will be written."""
        return self._thread.is_alive()

    @property
    def num_lost(self) -> int:
        """Lines, since the start."""
        return self._num_lost

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.offer(self.format(record) + "\n")
        except Exception:  # a message that its arguments do not fit costs whoever logs it nothing
            self.handleError(record)

    def offer(self, text: str) -> None:
        """Have it written, or count it as lost. Returns at once."""
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
        """Under the lock."""
        if untold := self._num_lost - self._num_told:
            self._num_told += untold
            message = "lines of the log were lost here, since nobody read them in time: %d"
            record = logging.LogRecord("headrace", logging.WARNING, __file__, 0, message, (untold,), None)
            self._put(_Piece(f"{self.format(record)}\n".encode(), untold))

    def _write_all(self) -> None:
        """The thread."""
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
            except Exception:  # the other end is closed, a disk is full, memory is short: the next lines may be written
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
        except BlockingIOError:  # another process that has it open does not want to wait
            select.select([], [descriptor], [])
