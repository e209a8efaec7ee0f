"""`headrace serve`, as the README starts it, on a free port of 127.0.0.1."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from loadtest.server_process import RunningServer, free_port, running_server


class HeadraceServer(NamedTuple):
    """port: where it listens."""

    running: RunningServer
    port: int


@contextlib.contextmanager
def headrace_server(flags: Sequence[str], log: BinaryIO) -> Iterator[HeadraceServer]:
    """With the quickstart model, unless the flags name another; settings of the environment do not reach it.

    log: a file for what it prints. Raises ServerDidNotStartError.
    """
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", "--port", str(port), *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    ready_url = f"http://127.0.0.1:{port}/ready"
    with running_server(command, ready_url, environment=environment, output=log) as server:
        yield HeadraceServer(server, port)
