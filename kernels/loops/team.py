"""Runs a compiled loop on the threads of torch's own operations.

A second thread pool would compete for the cores with torch's, whose threads spin between two operations. So a parallel
loop is a region of the OpenMP runtime that torch has loaded, entered by the call that a compiler emits for `#pragma omp
parallel` (GOMP_parallel of libgomp): the next region of the same team and thread.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numba import cfunc
from numba.core.caching import FunctionCache

from kernels.loops.bf16 import WITHOUT_ORDER

_COMMON_PARTS = ("bf16.py", "threads.py", "vector_code.py")


class RecordedCall(NamedTuple):
    """A loop's body by its address, and its arguments, beginning with the count of items."""

    address: int
    arguments: array[int]


recorded_calls: ContextVar[list[RecordedCall] | None] = ContextVar("recorded_calls", default=None)
"""Where this thread's calls of loops are recorded (kernels/loops/recording.py); None: nowhere."""


class Loop:
    """A body compiled once: `loop(parallel, num_items, *values)` computes items 0 .. num_items - 1.

    The body gets the address of int64 numbers: the count of items taken (0 at first), num_items, and the values:
    addresses, sizes, `float_bits`. Every thread of the team runs the body once, and takes items with `count_up` until
    there are no more; a thread that the system suspends takes fewer. Not parallel: only the calling thread runs it, and
    holds the GIL: for work of microseconds.
    """

    __slots__ = ("_address", "_call", "_compiled", "_enter")

    def __init__(self, body: Callable[[int], None]) -> None:
        self._compiled = _compile(body)
        self._address = self._compiled.address
        self._call = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._address)
        self._enter = ctypes.CDLL(None).GOMP_parallel
        self._enter.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._enter.restype = None

    def __call__(self, parallel: bool, num_items: int, *values: int) -> None:
        arguments = array("q", (0, num_items, *values))
        calls = recorded_calls.get()
        if calls is not None:
            calls.append(RecordedCall(self._address, array("q", arguments)))
        if parallel:
            self._enter(self._address, arguments.buffer_info()[0], torch.get_num_threads(), 0)
        else:
            self._call(arguments.buffer_info()[0])


@lru_cache(maxsize=64)
def float_bits(value: float) -> int:
    """`value` in the form that a body reads with `float_from_bits`."""
    bits: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return bits


def _compile(body: Callable[[int], None]) -> Any:
    """The machine code is cached on disk, in `__pycache__` beside the body's file or in the user's cache folder.

    If it cannot be cached, or the cache cannot be read, it is compiled for this process only.
    """
    options: dict[str, Any] = {"fastmath": set(WITHOUT_ORDER), "error_model": "numpy", "boundscheck": False}
    try:
        _forget_older_than_common_parts(body)
        return cfunc("void(int64)", cache=True, **options)(body)
    except Exception:  # any file error, as numba raises it; an error in the body is raised again below
        return cfunc("void(int64)", **options)(body)


def _forget_older_than_common_parts(body: Callable[[int], None]) -> None:
    """numba recompiles when the body's own file has changed, but does not know what else is compiled into it."""
    changed_s = max((Path(__file__).parent / name).stat().st_mtime for name in _COMMON_PARTS)
    own_file = Path(body.__code__.co_filename).stem
    for kept in Path(FunctionCache(body).cache_path).glob(f"{own_file}.*.nbi"):
        if kept.stat().st_mtime < changed_s:
            kept.unlink(missing_ok=True)
