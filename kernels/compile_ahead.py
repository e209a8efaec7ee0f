"""Compiles kernels side by side. A kernel is normally compiled at its first launch, which takes up to a second; a model
needs some thirty, which would be compiled one after another.

Triton calls a hook before it compiles for a launch. Our hook notes what would be compiled and reports it as handled, so
neither the compilation nor the launch happens. Then threads compile all that was noted (the compiler releases the GIL,
and ptxas is a process of its own), and each kernel's launcher, for which Triton up to 3.6 runs a C compiler. The
results are loaded, one after another, into the place where later launches look.

Even so, half of a compilation holds the GIL. If there are compile processes (kernels/compile_processes.py), they
compile what Triton's disk cache does not have, and the threads find it there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from kernels import compile_processes
from kernels.compile_processes import Wanted
from kernels.optional_triton import triton

logger = logging.getLogger(__name__)

_MAX_THREADS = 32
_HASHING = threading.Lock()

_WITHOUT_VALUES = frozenset({torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty})


class Noted(NamedTuple):
    """A kernel to compile. function: Triton's function object; module, name: where it is defined. specialization: the
    types and constants of the arguments, in Triton's notation."""

    function: Any
    module: str
    name: str
    specialization: str

    @property
    def wanted(self) -> Wanted:
        return self.module, self.name, self.function.cache_key, self.specialization


def compile_ahead(launch: Callable[[], object]) -> int:
    """Compile all that the launches in `launch` need and that is not compiled yet; returns how many kernels that was.

    `note_launches`, then `compile_noted`.
    """
    return compile_noted(note_launches(launch))


def note_launches(launch: Callable[[], object]) -> Sequence[Noted]:
    """The kernels that the launches in `launch` need and that are not compiled yet.

    On a GPU. What `launch` computes is meaningless, because launches of these kernels are skipped. Meanwhile new
    tensors hold zeros, so that a compiled kernel that reads what a skipped one should have written (ids, places) stays
    within its tensors.
    """
    noted: dict[tuple[int, str], Noted] = {}
    with _noting(noted), _ZeroedMemory():
        launch()
    for each in noted.values():
        # Triton's hash of a function's source depends on the functions hashed before it, so it is not computed in
        # threads.
        _ = each.function.cache_key
    return list(noted.values())


def compile_noted(noted: Sequence[Noted]) -> int:
    """Compile them side by side; returns how many kernels that was. One that fails is left to its first launch, which
    raises the error."""
    if not noted:
        return 0
    begun_s = time.monotonic()
    hash_triton()
    num_threads = min(_MAX_THREADS, os.cpu_count() or 1, len(noted))
    with ThreadPoolExecutor(num_threads, thread_name_prefix="compile", initializer=_device_of_this_thread()) as pool:
        kernels, elsewhere = _compiled(noted, pool)
    compiled_s = time.monotonic()
    num_loaded = sum(_load(kernel) for kernel in kernels if kernel is not None)
    logger.info(
        "%d kernels, %d of them compiled by other processes, in %.1f s, loaded in %.1f",
        len(noted),
        elsewhere,
        compiled_s - begun_s,
        time.monotonic() - compiled_s,
    )
    return num_loaded


def hash_triton() -> None:
    """Compute Triton's hash of its own files (half a gigabyte), a part of every cache key. Triton keeps it once
    computed; threads that start before that would each read all the files."""
    hash_of_itself = getattr(triton.runtime.cache, "triton_key", None)  # private to Triton: it may be renamed
    if hash_of_itself is not None:
        with _HASHING:
            hash_of_itself()


def _device_of_this_thread() -> Callable[[], None]:
    """Returns a function that sets this thread's device in another thread. Kernels are kept per device, and a new
    thread starts with device 0, which may be another rank's."""
    if not torch.cuda.is_available():
        return lambda: None
    return partial(torch.cuda.set_device, torch.cuda.current_device())


def _compiled(noted: Sequence[Noted], pool: ThreadPoolExecutor) -> tuple[list[Any], int]:
    """`_compile` of each, and how many kernels other processes compiled."""
    processes = compile_processes.running()
    if processes is None:
        return list(pool.map(_compile, noted)), 0
    with _only_cached():
        kernels = list(pool.map(_compile, noted))
    missing = [index for index, kernel in enumerate(kernels) if kernel is None]
    if not missing:
        return kernels, 0
    target = vars(triton.runtime.driver.active.get_current_target())
    elsewhere = processes.compile(target, [noted[index].wanted for index in missing])
    for index, kernel in zip(missing, pool.map(_compile, [noted[index] for index in missing]), strict=True):
        kernels[index] = kernel
    return kernels, elsewhere


class _NotCachedError(Exception):
    """Triton would have to compile."""


@contextmanager
def _only_cached() -> Iterator[None]:
    """Triton raises _NotCachedError where it would compile."""
    manager = triton.runtime.cache.FileCacheManager
    get_group = manager.get_group

    def get_or_raise(self: Any, filename: str) -> Any:
        group = get_group(self, filename)
        if not group:
            raise _NotCachedError
        return group

    manager.get_group = get_or_raise
    try:
        yield
    finally:
        manager.get_group = get_group


class _ZeroedMemory(TorchFunctionMode):
    """New tensors are zeroed instead of left undefined. For the thread that enters it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.zero_() if func in _WITHOUT_VALUES else result


@contextmanager
def _noting(noted: dict[tuple[int, str], Noted]) -> Iterator[None]:
    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        function, specialization = fn.jit_function, compile["specialization_data"]
        noted[id(function), str(compile["key"])] = Noted(function, fn.module, fn.name, specialization)
        return True

    runtime = triton.knobs.runtime
    before, runtime.jit_cache_hook = runtime.jit_cache_hook, note
    try:
        yield
    finally:
        runtime.jit_cache_hook = before


def _compile(noted: Noted) -> Any:
    """The compiled kernel; None if it fails. Its launcher is then on disk; this launcher object is not used (see
    `_load`)."""
    try:
        kernel = noted.function.preload(noted.specialization)
        triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)
    except _NotCachedError:
        return None
    except Exception:  # the kernel's first launch raises it again
        logger.warning("%s was not compiled ahead", noted.function, exc_info=True)
        return None
    return kernel


def _load(kernel: Any) -> bool:
    """Make the kernel's launcher and load both. Never two at once: up to Triton 3.6 all launchers are Python modules of
    the same name, and Python puts what it loads into the newest of them. A thread could get the launcher of another
    thread's kernel."""
    try:
        _ = kernel.run  # the property loads it
    except Exception:  # the first launch raises it again
        logger.warning("%s was not loaded ahead", kernel, exc_info=True)
        return False
    return True
