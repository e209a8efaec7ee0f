"""Children that wait to become the ranks of a server that was forked, so that these need not import what it has."""

from __future__ import annotations

import array
import fcntl
import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from types import SimpleNamespace
from typing import Any, NoReturn

_MESSAGE_BYTES = 4096
_NUM_DESCRIPTORS = 16
_ABOVE_ALL = 100
"""No descriptor that a rank inherits has so high a number."""


def num_ranks_elsewhere(arguments: Sequence[str]) -> int:
    """Processes of ranks that `serve` with these arguments starts on this host."""
    told = dict(pairwise(arguments))
    sizes = (int(told.get(f"--{name}-parallel-size", 1)) for name in ("tensor", "pipeline"))
    return prod(sizes) // int(told.get("--nnodes", 1)) - 1


class SpareProcesses:
    """Forked now, each to be a program once, as `subprocess.Popen` would start it. Those that nobody needs end with
    this process."""

    def __init__(self, number: int) -> None:
        self._spares: list[tuple[int, socket.socket]] = []
        for _ in range(number):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if not pid:
                for _, others in (*self._spares, (0, ours)):
                    others.close()
                _become_what_is_asked(theirs)
            theirs.close()
            self._spares.append((pid, ours))

    def start(
        self,
        command: Sequence[str],
        *,
        pass_fds: Sequence[int],
        stdin: int,
        env: Mapping[str, str] | None,
    ) -> TakenSpare | subprocess.Popen[bytes]:
        """command: an interpreter, -m, a module and its arguments. Another environment has to be executed."""
        if env is not None or not self._spares:
            return subprocess.Popen(command, pass_fds=pass_fds, stdin=stdin, env=env)
        pid, spare = self._spares.pop(0)
        with spare:
            socket.send_fds(spare, [json.dumps([command, pass_fds]).encode()], pass_fds)
        return TakenSpare(pid)

    def instead_of_subprocess(self) -> SimpleNamespace:
        """What service/distributed/rank_processes.py uses of that module."""
        return SimpleNamespace(Popen=self.start, DEVNULL=subprocess.DEVNULL)


class TakenSpare:
    """A child, as `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._look(os.WNOHANG)

    def wait(self) -> int:
        status = self._look(0)
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _look(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _become_what_is_asked(line: socket.socket) -> NoReturn:
    room = socket.CMSG_SPACE(_NUM_DESCRIPTORS * array.array("i").itemsize)
    with line:
        message, ancillary, _, _ = line.recvmsg(_MESSAGE_BYTES, room)
    if not message:
        os._exit(0)
    command, numbers = json.loads(message)
    received = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _ABOVE_ALL) for descriptor in array.array("i", ancillary[0][2])]
    os.closerange(3, _ABOVE_ALL)
    for number, descriptor in zip(numbers, received, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    sys.orig_argv[1:] = command[1:]
    sys.argv[1:] = command[3:]
    status: Any = 0
    try:
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    os._exit(status or 0)
