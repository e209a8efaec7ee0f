"""Runs a compiled loop on the threads that torch's own operations run on.

A second pool of threads would have to share the cores with torch's, whose threads spin between two operations. So a
parallel loop is a region of the OpenMP runtime that torch has loaded, entered by the call that a compiler writes for
`#pragma omp parallel` (GOMP_parallel of libgomp): the next one of the same team, of the same thread.
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
    """A loop's body by its address, and what it was called with, from the count of items on."""

    address: int
    arguments: array[int]


recorded_calls: ContextVar[list[RecordedCall] | None] = ContextVar("recorded_calls", default=None)
"""Where this thread's calls of loops are noted meanwhile (kernels/loops/recording.py); None: nowhere."""


class Loop:
    """A body compiled once: `loop(parallel, num_items, *values)` computes items 0 .. num_items - 1.

    The body gets the address of int64 numbers: a count of items taken (0 at first), num_items, and the values:
    addresses, sizes, `float_bits`. Every thread of the team runs it once; it takes items by `count_up` until there are
    no more. So a thread that the system holds up takes fewer. Not parallel: the calling thread alone, which
    keeps Python's lock meanwhile: for work of microseconds.
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
    """`value` as a body reads it by `float_from_bits`."""
    bits: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return bits


def _compile(body: Callable[[int], None]) -> Any:
    """The machine code is kept on disk, in `__pycache__` beside the body's file or in the user's cache folder.

    Where it cannot be kept, or what lies there cannot be read, it is compiled for this process alone.
    """
    options: dict[str, Any] = {"fastmath": set(WITHOUT_ORDER), "error_model": "numpy", "boundscheck": False}
    try:
        _forget_older_than_common_parts(body)
        return cfunc("void(int64)", cache=True, **options)(body)
    except Exception:  # a folder or a file: numba raises whatever it meets; what is wrong with the body comes again
        return cfunc("void(int64)", **options)(body)


def _forget_older_than_common_parts(body: Callable[[int], None]) -> None:
    """numba compiles anew when the body's own file has changed, but does not know what else is compiled into it."""
    changed_s = max((Path(__file__).parent / name).stat().st_mtime for name in _COMMON_PARTS)
    own_file = Path(body.__code__.co_filename).stem
    for kept in Path(FunctionCache(body).cache_path).glob(f"{own_file}.*.nbi"):
        if kept.stat().st_mtime < changed_s:
            kept.unlink(missing_ok=True)
