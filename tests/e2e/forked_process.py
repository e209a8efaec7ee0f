"""Programs forked from a process that has imported the service, to be used as those that `subprocess` starts."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TextIO

from tests.e2e.fork_server import NUMBER

ROOT = Path(__file__).parents[2]

_OWN = ["XDG_DATA_HOME"]
"""What differs between the environments of processes that share a server: each worker of the tests has its own."""


class ForkedProcess:
    """What the tests use of `subprocess.Popen([python, "-m", *command], stderr=PIPE, text=True)`.

    status: tells the process's id, and then what it has ended with.
    """

    def __init__(self, args: Sequence[str], status: socket.socket, stderr: TextIO | None = None) -> None:
        self.args = args
        self.stderr = stderr
        self.returncode: int | None = None
        self._status = status
        self.pid: int = self._told()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = self._told()
            self._status.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.poll()
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[None, str]:
        """What it still writes to standard error until nobody can any more, and its end."""
        assert self.stderr is not None
        stderr, read = self.stderr, list[str]()
        deadline_s = time.monotonic() + timeout
        reader = threading.Thread(target=lambda: read.append(stderr.read()), daemon=True)
        reader.start()
        reader.join(timeout)
        if reader.is_alive():
            raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(max(0.0, deadline_s - time.monotonic()))
        return None, read[0]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _told(self) -> int:
        number: int = NUMBER.unpack(self._status.recv(NUMBER.size))[0]
        return number


class ForkServer:
    """The process that forks; it ends with this one. Who is forked from this one can ask it, too.

    What it starts has the environment that it has, but of who asks what `_OWN` names.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
                env=dict(environment),
                cwd=ROOT,
            )

    def start(self, command: Sequence[str]) -> ForkedProcess:
        """command: a module and its arguments. What it writes to standard error is read from the process's `stderr`."""
        read_end, write_end = os.pipe()
        args, status = self._ordered(command, [0, 1, write_end])
        os.close(write_end)
        return ForkedProcess(args, status, os.fdopen(read_end))

    def start_writing(self, command: Sequence[str], output: int) -> ForkedProcess:
        """output: a descriptor that it has as its standard output and standard error."""
        return ForkedProcess(*self._ordered(command, [0, output, output]))

    def _ordered(self, command: Sequence[str], streams: Sequence[int]) -> tuple[list[str], socket.socket]:
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = {name: os.environ[name] for name in _OWN if name in os.environ}
        with theirs:
            socket.send_fds(self._control, [json.dumps([command, own]).encode()], [*streams, theirs.fileno()])
        return [sys.executable, "-m", *command], status

    def close(self) -> None:
        """Once those that were forked from this process have ended; from them it does nothing."""
        if os.getpid() == self._owner:
            self._control.close()
            self._process.wait()


@cache
def _fork_server(environment: tuple[tuple[str, str], ...]) -> ForkServer:
    server = ForkServer(dict(environment))
    atexit.register(server.close)
    return server


def fork_server(environment: Mapping[str, str]) -> ForkServer:
    """One for all the tests of this process, and of those forked from it since it was asked for here first, that give
    their processes this environment, whatever has the names of `_OWN`."""
    return _fork_server(tuple(sorted((name, "" if name in _OWN else value) for name, value in environment.items())))
