"""Primitives for threads that walk through a list of loops together: reading a count, calling by address, waiting."""

from __future__ import annotations

from typing import Any, no_type_check

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from kernels.loops.bf16 import instruction

_PAUSES = 1000  # some 15 microseconds
_I32, _I64, _VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()
_BODY = ir.FunctionType(_VOID, [_I64])


def _pause(builder: Any, arguments: Any) -> Any:
    return builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), ir.FunctionType(_VOID, [])), [])


def _yield_core(builder: Any, arguments: Any) -> Any:
    return builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, []), "sched_yield"), [])


peek = instruction(
    types.int64(types.int64),
    lambda b, a: b.load_atomic(b.inttoptr(a[0], _I64.as_pointer()), "acquire", align=8),
)
"""The int64 at an address. Whatever another thread wrote before it counted up to that value is visible afterwards."""

call = instruction(
    types.void(types.int64, types.int64), lambda b, a: b.call(b.inttoptr(a[0], _BODY.as_pointer()), [a[1]])
)
"""Calls a Loop's body, by its address, with the address of its arguments."""

pause = instruction(types.void(), _pause)
"""Tells the processor that this thread is spinning."""

yield_core = instruction(types.void(), _yield_core)
"""Yields this thread's core to others."""


@njit(inline="always")
@no_type_check
def give_way(turns):
    """One step of waiting: a pause at first; after some microseconds, yield the core."""
    if turns > _PAUSES:
        yield_core()
    else:
        pause()
