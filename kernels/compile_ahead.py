"""Compiles kernels side by side. A kernel is compiled when it is first launched, which takes up to a second; a model
needs some thirty, one after the other if nothing is done about it.

Triton asks a hook before it compiles for a launch. Here the hook notes what would be compiled and says that it has been
seen to, so that neither the compilation nor that launch takes place; then threads compile all that was noted (the
compiler releases the interpreter, and ptxas is a process of its own) and each kernel's launcher, which Triton up to 3.6
has a C compiler for. The results are loaded, one after the other, to where later launches look.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernels.optional_triton import triton

logger = logging.getLogger(__name__)

_MAX_THREADS = 32

_WITHOUT_VALUES = frozenset({torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty})

Noted = dict[tuple[int, str], tuple[Any, str]]
"""(function, key) -> the function, and the arguments' types and constants in Triton's own notation."""


def compile_ahead(launch: Callable[[], object]) -> int:
    """Compile whatever the launches in `launch` need and is not compiled yet; how many kernels that was.

    On a GPU. launch: what it computes is worthless, as launches of such kernels are left out. New tensors hold zeros
    meanwhile, so that a kernel which is compiled already and reads what another should have written, ids and places
    too, stays within its tensors. A kernel that fails to compile is left to its first launch, which tells why.
    """
    noted: Noted = {}
    with _noting(noted), _ZeroedMemory():
        launch()
    if not noted:
        return 0
    _hash_triton()
    num_threads = min(_MAX_THREADS, os.cpu_count() or 1, len(noted))
    with ThreadPoolExecutor(num_threads, thread_name_prefix="compile", initializer=_device_of_this_thread()) as pool:
        kernels = list(pool.map(_compile, noted.values()))
    return sum(_load(kernel) for kernel in kernels if kernel is not None)


def _device_of_this_thread() -> Callable[[], None]:
    """Makes it another thread's, too. Kernels are kept by device, and a thread begins with the first one, which is
    another rank's."""
    if not torch.cuda.is_available():
        return lambda: None
    return partial(torch.cuda.set_device, torch.cuda.current_device())


class _ZeroedMemory(TorchFunctionMode):
    """No tensor is made without values. Of the thread that enters it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.zero_() if func in _WITHOUT_VALUES else result


@contextmanager
def _noting(noted: Noted) -> Iterator[None]:
    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        noted[id(fn.jit_function), str(compile["key"])] = fn.jit_function, compile["specialization_data"]
        return True

    runtime = triton.knobs.runtime
    before, runtime.jit_cache_hook = runtime.jit_cache_hook, note
    try:
        yield
    finally:
        runtime.jit_cache_hook = before


def _hash_triton() -> None:
    """Triton's hash of itself, half a gigabyte, is a part of every kernel's key in its cache. It is kept, but not
    before one thread is done with it: all of them at once would each read the files."""
    hash_of_itself = getattr(triton.runtime.cache, "triton_key", None)  # Triton's own matter, which may move
    if hash_of_itself is not None:
        hash_of_itself()


def _compile(noted: tuple[Any, str]) -> Any:
    """The kernel, None if that fails. Its launcher is on disk then, and this one is left alone: see `_load`."""
    function, specialization = noted
    try:
        kernel = function.preload(specialization)
        triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)
    except Exception:  # whatever it is, the kernel's first launch tells it again
        logger.warning("%s was not compiled ahead", function, exc_info=True)
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
