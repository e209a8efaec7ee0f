"""A server of the command's own, which runs as long as the command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from types import FrameType
from typing import IO

from service.chat_client.server import ServerFault

_READY = re.compile(r"ready at (\S+)")
_LAST_LINES = 5


@contextmanager
def own_server(model: str | None, options: Sequence[str]) -> Iterator[str]:
    """The server's address, once it is ready. model: as for `headrace serve`; None: the one that comes with Headrace.
    options: further options of `headrace serve`. ServerFault with the end of its log if it does not start.

    It and its files are removed at the end, also when SIGTERM or SIGHUP ends the command; if the command is killed, the
    server ends and its files stay. Ctrl-C at a terminal does not reach it, so that the command can still fetch answers.
    Its port is not announced, but others on this machine may find it.
    """
    with _signals_unwind(), tempfile.TemporaryDirectory(prefix="headrace-") as data:
        command = [sys.executable, "-m", "service.process.with_parent", str(os.getpid())]
        command += ["service", "serve", *([] if model is None else [model])]
        command += ["--port", "0", "--data-dir", data, "--shutdown-timeout", "1", *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0) as process:
            assert process.stderr is not None
            log = _Log(process.stderr)
            try:
                yield log.address()
            finally:
                process.terminate()
                try:
                    log.close()
                except BaseException:  # Ctrl-C, or a signal, for the second time
                    process.kill()
                    raise


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """SIGTERM and SIGHUP, unless it is ignored, are SystemExit here, so that what was begun is ended. Main thread."""

    def unwind(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, unwind)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Log:
    """Read to its end by a thread; unread, it would block the server."""

    def __init__(self, lines: IO[str]) -> None:
        self._last = deque[str](maxlen=_LAST_LINES)
        self._address: str | None = None
        self._is_told = Event()
        self._reading = Thread(target=self._read, args=(lines,))
        self._reading.start()

    def address(self) -> str:
        """Returned when the server is ready; ServerFault if it ends before."""
        self._is_told.wait()
        if self._address is None:
            raise ServerFault("the model could not be served:\n" + "".join(self._last))
        return self._address

    def close(self) -> None:
        """To be called when the server has ended."""
        self._reading.join()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self._last.append(line)
            if self._address is None and (found := _READY.search(line)):
                self._address = found[1]
                self._is_told.set()
        self._is_told.set()
