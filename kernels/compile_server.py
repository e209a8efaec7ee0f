"""The process that forks others to compile kernels (kernels/compile_processes.py).

    python -m kernels.compile_server NUM

It has imported all kernels, and never touches a device: what a compilation needs to know of it comes with the request.
It lives as long as its standard input is open, and no longer than who started it.

Input: one JSON object a line, the target and the kernels that are wanted. Output: a line for each, how many of them are
compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import kernels
from kernels.compile_processes import Wanted
from kernels.optional_triton import triton

_PR_SET_PDEATHSIG = 1
_NUMBER_BYTES = 2


def serve(num: int, requests: Iterator[bytes], answer: Callable[[bytes], object]) -> None:
    """Until there are no more requests. num: that compile at once."""
    for line in requests:
        request = json.loads(line)
        _use_target(request["target"])
        answer(b"%d\n" % compile_all(request["wanted"], num))


def compile_all(wanted: Sequence[Wanted], num: int) -> int:
    """In forks of this process; how many of them could be."""
    order = sorted(range(len(wanted)), key=lambda index: -_length(wanted[index]))
    left, put = os.pipe()
    os.write(put, b"".join(index.to_bytes(_NUMBER_BYTES, "big") for index in order))
    os.close(put)
    done, note = os.pipe()
    pids = [_fork(wanted, left, note) for _ in range(min(num, len(wanted)))]
    os.close(left)
    os.close(note)
    num_done = 0
    while compiled := os.read(done, 2**16):
        num_done += len(compiled)
    os.close(done)
    for pid in pids:
        os.waitpid(pid, 0)
    return num_done


def _fork(wanted: Sequence[Wanted], left: int, note: int) -> int:
    """It takes the next of `left`, a pipe of numbers, again and again, and writes a byte to `note` for each that it has
    compiled."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _end_with(parent)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # whoever launches the kernel tells it again
        while number := os.read(left, _NUMBER_BYTES):
            with contextlib.suppress(Exception):
                _compile(wanted[int.from_bytes(number, "big")])
                os.write(note, b".")
    finally:
        os._exit(0)


def _compile(wanted: Wanted) -> None:
    """The kernel and its launcher, for which Triton up to 3.6 has a C compiler."""
    *_, source_hash, specialization = wanted
    function = _function(wanted)
    function.hash = source_hash
    kernel = function.preload(specialization)
    with contextlib.suppress(Exception):  # a driver's own matter: without it, the parent makes the launcher
        triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)


def _function(wanted: Wanted) -> Any:
    module, name, *_ = wanted
    return getattr(importlib.import_module(module), name)


def _length(wanted: Wanted) -> int:
    """Of its source: what takes longest is to begin first."""
    return len(getattr(_function(wanted), "src", ""))


def _use_target(target: dict[str, Any]) -> None:
    """Of Triton's driver no more is needed to compile."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaLauncher

    known = GPUTarget(**target)
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_target=lambda: known,
            launcher_cls=CudaLauncher,
        )
    )


def _prepare() -> None:
    """What every fork needs, and what this process's parent will look for in the cache: the driver's own part in C."""
    for module in pkgutil.iter_modules(kernels.__path__):
        if not module.ispkg:
            importlib.import_module(f"kernels.{module.name}")
    hash_of_itself = getattr(triton.runtime.cache, "triton_key", None)  # Triton's own matter, which may move
    if hash_of_itself is not None:
        hash_of_itself()
    with contextlib.suppress(Exception):  # likewise
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()


def _end_with(parent: int) -> None:
    """From now on the kernel kills this process with its parent."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # which has ended before
        os._exit(0)


def main(arguments: Sequence[str]) -> int:
    _end_with(os.getppid())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # sent to all processes: the parent ends in order
        signal.signal(number, signal.SIG_IGN)
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # nothing else gets between the answers

    def answer(line: bytes) -> None:
        answers.write(line)
        answers.flush()

    _prepare()
    serve(int(arguments[0]), iter(sys.stdin.buffer.readline, b""), answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
