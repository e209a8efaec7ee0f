"""Compiles kernels side by side. A kernel is compiled when it is first launched, which takes up to a second; a model
needs some thirty, one after the other if nothing is done about it.

Triton asks a hook before it compiles for a launch. Here the hook notes what would be compiled and says that it has been
seen to, so that neither the compilation nor that launch takes place; then threads compile all that was noted (the
compiler releases the interpreter, and ptxas is a process of its own) and each kernel's launcher, which Triton up to 3.6
has a C compiler for. The results are loaded, one after the other, to where later launches look.

Half of a compilation holds the interpreter, all the same. Where there are processes for it (kernels/
compile_processes.py), they compile what Triton's cache on disk does not have, and the threads find it there.
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
    """function: Triton's, of a module and a name there. specialization: the arguments' types and constants in Triton's
    own notation."""

    function: Any
    module: str
    name: str
    specialization: str

    @property
    def wanted(self) -> Wanted:
        return self.module, self.name, self.function.cache_key, self.specialization


def compile_ahead(launch: Callable[[], object]) -> int:
    """Compile whatever the launches in `launch` need and is not compiled yet; how many kernels that was.

    As `note_launches` and `compile_noted`.
    """
    return compile_noted(note_launches(launch))


def note_launches(launch: Callable[[], object]) -> Sequence[Noted]:
    """The kernels that the launches in `launch` need and that are not compiled yet.

    On a GPU. launch: what it computes is worthless, as launches of such kernels are left out. New tensors hold zeros
    meanwhile, so that a kernel which is compiled already and reads what another should have written, ids and places
    too, stays within its tensors.
    """
    noted: dict[tuple[int, str], Noted] = {}
    with _noting(noted), _ZeroedMemory():
        launch()
    for each in noted.values():
        # Triton's hash of a function's source hangs on which functions it has hashed before: not in threads, therefore.
        _ = each.function.cache_key
    return list(noted.values())


def compile_noted(noted: Sequence[Noted]) -> int:
    """Side by side; how many kernels that was. One that fails is left to its first launch, which tells why."""
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
    """Triton's hash of itself, half a gigabyte, is a part of every kernel's key in its cache. It is kept, but not
    before one thread is done with it: all of them at once would each read the files."""
    hash_of_itself = getattr(triton.runtime.cache, "triton_key", None)  # Triton's own matter, which may move
    if hash_of_itself is not None:
        with _HASHING:
            hash_of_itself()


def _device_of_this_thread() -> Callable[[], None]:
    """Makes it another thread's, too. Kernels are kept by device, and a thread begins with the first one, which is
    another rank's."""
    if not torch.cuda.is_available():
        return lambda: None
    return partial(torch.cuda.set_device, torch.cuda.current_device())


def _compiled(noted: Sequence[Noted], pool: ThreadPoolExecutor) -> tuple[list[Any], int]:
    """As `_compile`, each of them; and how many kernels other processes have compiled."""
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
    """Triton would compile now."""


@contextmanager
def _only_cached() -> Iterator[None]:
    """Triton does not compile: it raises _NotCachedError instead."""
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
    """No tensor is made without values. Of the thread that enters it."""

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
    """The kernel, None if that fails. Its launcher is on disk then, and this one is left alone: see `_load`."""
    try:
        kernel = noted.function.preload(noted.specialization)
        triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)
    except _NotCachedError:
        return None
    except Exception:  # whatever it is, the kernel's first launch tells it again
        logger.warning("%s was not compiled ahead", noted.function, exc_info=True)
        return None
    return kernel


def _load(kernel: Any) -> bool:
    """Make the kernel's launcher, and load both. Never two at once: up to Triton 3.6 all launchers are Python modules
    of one name, and what Python has loaded before it puts into whichever of them came last. So one thread may find the
    launcher of another's kernel in its own."""
    try:
        _ = kernel.run  # by being asked for
    except Exception:  # likewise
        logger.warning("%s was not loaded ahead", kernel, exc_info=True)
        return False
    return True
