"""Primitives for the loops beyond numba's own: bf16, memory by address, an exponential that vectorises.

A bf16 number is represented by its 16 bits: the upper half of a float32's. Loops use `WITHOUT_ORDER`: sums may be
reordered, which vectorising needs; NaN and infinity are preserved.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

WITHOUT_ORDER = frozenset({"reassoc", "contract", "nsz", "arcp"})

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F32 = ir.FloatType()


def instruction(signature: Any, generate: Any) -> Any:
    """A numba function made from one that emits its LLVM instructions: generate(builder, arguments)."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        result = generate(builder, arguments)
        return context.get_dummy_value() if signature.return_type is types.void else result

    def typing(context: Any, *arguments: Any) -> Any:
        return signature, codegen

    forms = (lambda context: typing(context), lambda context, x: typing(context), lambda context, x, y: typing(context))
    return intrinsic(forms[len(signature.args)])


def _pointer_to(element: Any, llvm_element: Any) -> Any:
    pointer: Any = types.CPointer(element)
    return instruction(pointer(types.int64), lambda b, a: b.inttoptr(a[0], llvm_element.as_pointer()))


def _narrow(builder: Any, arguments: Any) -> Any:
    bits = builder.bitcast(arguments[0], _I32)
    is_odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
    rounded = builder.add(builder.add(bits, _I32(0x7FFF)), is_odd)
    return builder.trunc(builder.lshr(rounded, _I32(16)), _I16)


widen = instruction(types.float32(types.uint16), lambda b, a: b.bitcast(b.shl(b.zext(a[0], _I32), _I32(16)), _F32))
"""bf16 -> float32, exact."""

narrow = instruction(types.uint16(types.float32), _narrow)
"""float32 -> bf16, round to nearest, ties to even. A NaN must not have all of its bits set; arithmetic makes no such
NaN."""

float_from_bits = instruction(types.float32(types.int32), lambda b, a: b.bitcast(a[0], _F32))
bits_of_float = instruction(types.int32(types.float32), lambda b, a: b.bitcast(a[0], _I32))

count_up = instruction(
    types.int64(types.int64),
    lambda b, a: b.atomic_rmw("add", b.inttoptr(a[0], _I64.as_pointer()), _I64(1), "acq_rel"),
)
"""Atomically adds one to the int64 at an address and returns the old value."""

_to_bf16 = _pointer_to(types.uint16, _I16)
_to_float32 = _pointer_to(types.float32, _F32)
_to_int32 = _pointer_to(types.int32, _I32)
_to_int64 = _pointer_to(types.int64, _I64)


@njit(inline="always")
@no_type_check
def bf16_at(address, size):
    """An array of known, dense layout: numba vectorises no others."""
    return carray(_to_bf16(address), (size,))


@njit(inline="always")
@no_type_check
def float32_at(address, size):
    return carray(_to_float32(address), (size,))


@njit(inline="always")
@no_type_check
def int32_at(address, size):
    return carray(_to_int32(address), (size,))


@njit(inline="always")
@no_type_check
def int64_at(address, size):
    return carray(_to_int64(address), (size,))


@njit(error_model="numpy")
@no_type_check
def exp(x):
    """e^x in float32 to some 2e-6 (Cephes' polynomial), NaN for NaN; x is clamped to -87 .. 88.

    The nearest whole power of two is read from the bits of a sum: `WITHOUT_ORDER` would optimise away rounding by
    adding and subtracting, and a NaN has no integer.
    """
    if x < np.float32(-87.0):
        x = np.float32(-87.0)
    if x > np.float32(88.0):
        x = np.float32(88.0)
    shifted = x * np.float32(1.4426950408889634) + np.float32(12582912.0)
    power = np.int32(bits_of_float(shifted) - 0x4B400000)
    rest = x - np.float32(power) * np.float32(0.6931471805599453)
    series = np.float32(1.9875691500e-4)
    series = series * rest + np.float32(1.3981999507e-3)
    series = series * rest + np.float32(8.3334519073e-3)
    series = series * rest + np.float32(4.1665795894e-2)
    series = series * rest + np.float32(1.6666665459e-1)
    series = series * rest + np.float32(5.0000001201e-1)
    value = series * rest * rest + rest + np.float32(1.0)
    return value * float_from_bits(np.int32((power + 127) << 23))
