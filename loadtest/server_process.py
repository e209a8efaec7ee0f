"""A server under test as a subprocess of the measuring script."""

import contextlib
import socket
import subprocess
import tempfile
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

from loadtest.direct_http import opened

_STOP_S = 20.0
_POLL_S = 0.05


class ServerDidNotStartError(Exception):
    """The server ended, or was not ready in time. The message contains the end of its output."""


class RunningServer(NamedTuple):
    """start_s: seconds until it was ready.

    wait: waits at most that many seconds for the process to end; returns its exit status or raises
    subprocess.TimeoutExpired.
    """

    start_s: float
    pid: int
    wait: Callable[[float], int]


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def running_server(
    command: Sequence[str],
    ready_url: str,
    timeout_s: float = 120.0,
    environment: Mapping[str, str] | None = None,
    output: BinaryIO | None = None,
) -> Iterator[RunningServer]:
    """Start the command and wait until `ready_url` answers 200; stop it on exit.

    Raises ServerDidNotStartError. environment: replaces this process's. output: a file for the command's output.
    """
    with contextlib.nullcontext(output) if output else tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            while not _answers(ready_url):
                late = time.perf_counter() - began > timeout_s
                if late or process.poll() is not None:
                    reason = f"not ready in {timeout_s:g} s" if late else f"ended with code {process.returncode}"
                    raise ServerDidNotStartError(f"{reason}: {_tail(output.fileno())}")
                time.sleep(_POLL_S)
            yield RunningServer(time.perf_counter() - began, process.pid, process.wait)
        finally:
            _stop(process)


def _answers(url: str) -> bool:
    try:
        with opened(url, 2.0) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(file_descriptor: int) -> str:
    with open(file_descriptor, "rb", closefd=False) as output:
        output.seek(0)
        return output.read()[-1500:].decode(errors="replace").strip()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
