"""Processes that compile kernels beside this one, into Triton's cache on disk.

Half of a compilation is Python, so threads of one process wait for each other. Here one process
(kernels/compile_server.py) imports Triton and the kernels, beside this process's own imports, and forks as many as are
to compile at once; what they leave in the cache is found there by whoever compiles the same.

Standard library only: it is started before torch is imported.
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
"""So long the compilation of all kernels may take, and the server's imports before it."""

Wanted = tuple[str, str, str, str]
"""A kernel's module and name there, Triton's hash of its source, and what it is compiled for: types and constants in
Triton's own notation. The hash hangs on which kernels a process has looked at before, so it is this process's."""


class CompileProcesses:
    """num: that compile at once. server: the interpreter's arguments for the process that forks them.

    To be started on a thread that lives as long as they shall: the kernel kills a child with the thread that made it.
    """

    def __init__(self, num: int, server: Sequence[str] = SERVER) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *server, str(num)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def compile(self, target: Mapping[str, object], wanted: Collection[Wanted]) -> int:
        """Returns how many of them are in the cache now; whatever it could not do is left to the caller. target: the
        fields of Triton's GPUTarget. One thread at a time."""
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
        """Returns once there are none any more. May be called again."""
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
    """Have them until `stop`. As CompileProcesses."""
    stop()
    _OfThisProcess.started = CompileProcesses(num, **how)


def running() -> CompileProcesses | None:
    return _OfThisProcess.started


def stop() -> None:
    started, _OfThisProcess.started = _OfThisProcess.started, None
    if started is not None:
        started.close()
