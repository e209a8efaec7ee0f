"""Processes that compile kernels beside this one, into Triton's disk cache.

Half of a compilation is Python, so threads of one process wait for each other. Here one server process
(kernels/compile_server.py) imports Triton and the kernels, while this process does its own imports, and forks as many
workers as are to compile at once. Whoever compiles the same kernel later finds the result in the cache.

Standard library only, because it starts before torch is imported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

logger = logging.getLogger(__name__)

SERVER = ("-m", "kernels.compile_server")
_PATIENCE_S = 120.0
"""Limit for compiling all kernels, including the server's imports."""

Wanted = tuple[str, str, str, str]
"""A kernel's module, its name there, Triton's hash of its source, and what it is compiled for: types and constants in
Triton's notation. The hash depends on the kernels that a process has hashed before, so this process's hash is sent
along."""


class CompileProcesses:
    """num: how many compile at once. server: the interpreter's arguments for the process that forks them.

    Start it on a thread that lives as long as the processes should: the Linux kernel kills a child when the thread that
    started it ends.
    """

    def __init__(self, num: int, server: Sequence[str] = SERVER) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *server, str(num)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def compile(self, target: Mapping[str, object], wanted: Collection[Wanted]) -> int:
        """Returns how many of the kernels are in the cache now; the caller compiles the others. target: the fields of
        Triton's GPUTarget. One thread at a time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        late = threading.Timer(_PATIENCE_S, self._process.kill)
        late.start()
        try:
            self._process.stdin.write(json.dumps({"target": target, "wanted": list(wanted)}).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())
        except (OSError, ValueError):  # it has ended
            logger.warning("the processes that compile kernels have ended: threads compile instead", exc_info=True)
            return 0
        finally:
            late.cancel()

    def close(self) -> None:
        """Returns once no process is left. May be called again."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what could not be written
                    pipe.close()


class _OfThisProcess:
    """started: None before `start` and after `stop`."""

    started: CompileProcesses | None = None


def start(num: int, **how: Any) -> None:
    """Start the processes, which run until `stop`. Arguments as for CompileProcesses."""
    stop()
    _OfThisProcess.started = CompileProcesses(num, **how)


def running() -> CompileProcesses | None:
    return _OfThisProcess.started


def stop() -> None:
    started, _OfThisProcess.started = _OfThisProcess.started, None
    if started is not None:
        started.close()
