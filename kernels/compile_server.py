"""The process that forks workers to compile kernels (kernels/compile_processes.py).

    python -m kernels.compile_server NUM

It imports all kernels and never touches a device: requests carry what a compilation must know about it. It lives as
long as its standard input is open, and ends with the process that started it.

Input: one JSON object per line, with the target and the wanted kernels. Output: one line for each, the number of
kernels that were compiled.
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
    """Answer requests until there are no more. num: how many compile at once."""
    for line in requests:
        request = json.loads(line)
        _use_target(request["target"])
        answer(b"%d\n" % compile_all(request["wanted"], num))


def compile_all(wanted: Sequence[Wanted], num: int) -> int:
    """Compile in forks of this process; returns how many kernels that worked for."""
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
    """The fork takes index after index from `left`, a pipe, and writes a byte to `note` for each kernel that it has
    compiled."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _end_with(parent)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # the kernel's launch reports errors again
        while number := os.read(left, _NUMBER_BYTES):
            with contextlib.suppress(Exception):
                _compile(wanted[int.from_bytes(number, "big")])
                os.write(note, b".")
    finally:
        os._exit(0)


def _compile(wanted: Wanted) -> None:
    """The kernel and its launcher, for which Triton up to 3.6 runs a C compiler."""
    *_, source_hash, specialization = wanted
    function = _function(wanted)
    function.hash = source_hash
    kernel = function.preload(specialization)
    with contextlib.suppress(Exception):  # private to the driver: if it fails, the parent makes the launcher
        triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)


def _function(wanted: Wanted) -> Any:
    module, name, *_ = wanted
    return getattr(importlib.import_module(module), name)


def _length(wanted: Wanted) -> int:
    """Length of the kernel's source: what takes longest should start first."""
    return len(getattr(_function(wanted), "src", ""))


def _use_target(target: dict[str, Any]) -> None:
    """A minimal driver: compiling needs no more than this."""
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
    """Load what every fork needs, and build what this process's parent will look for in the cache: the driver's C
    module."""
    for module in pkgutil.iter_modules(kernels.__path__):
        if not module.ispkg:
            importlib.import_module(f"kernels.{module.name}")
    hash_of_itself = getattr(triton.runtime.cache, "triton_key", None)  # private to Triton: it may be renamed
    if hash_of_itself is not None:
        hash_of_itself()
    with contextlib.suppress(Exception):  # this class is private, too
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()


def _end_with(parent: int) -> None:
    """From now on the Linux kernel kills this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended already
        os._exit(0)


def main(arguments: Sequence[str]) -> int:
    _end_with(os.getppid())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the parent ends this process
        signal.signal(number, signal.SIG_IGN)
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # only answers go to standard output

    def answer(line: bytes) -> None:
        answers.write(line)
        answers.flush()

    _prepare()
    serve(int(arguments[0]), iter(sys.stdin.buffer.readline, b""), answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
