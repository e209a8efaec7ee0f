"""Starts `headrace serve`, as in the README, on a free port of 127.0.0.1."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from loadtest.server_process import RunningServer, free_port, running_server


class HeadraceServer(NamedTuple):
    """port: the port that it listens on."""

    running: RunningServer
    port: int


@contextlib.contextmanager
def headrace_server(flags: Sequence[str], log: BinaryIO) -> Iterator[HeadraceServer]:
    """Serves the quickstart model, unless the flags name another. Settings in the environment are not passed on.

    log: a file for the server's output. Raises ServerDidNotStartError.
    """
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", "--port", str(port), *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    ready_url = f"http://127.0.0.1:{port}/ready"
    with running_server(command, ready_url, environment=environment, output=log) as server:
        yield HeadraceServer(server, port)
