"""A server of the command's own, which runs as long as the command."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import IO

from service.chat_client.server import ServerFault

_READY = re.compile(r"ready at (\S+)")
_LAST_LINES = 5


@contextmanager
def own_server(model: str | None, options: Sequence[str]) -> Iterator[str]:
    """The server's address, once it is ready. model: as for `headrace serve`; None: the one that comes with Headrace.
    options: further options of `headrace serve`. ServerFault with the end of its log if it does not start.

    Its files are removed with it. Its port is not announced, but others on this machine may find it.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as data:
        command = [sys.executable, "-m", "service", "serve", *([] if model is None else [model])]
        command += ["--port", "0", "--data-dir", data, "--shutdown-timeout", "1", *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            log = _Log(process.stderr)
            try:
                yield log.address()
            finally:
                process.terminate()
                log.close()


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
