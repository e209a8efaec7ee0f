"""LLVM instructions on vectors of 16 float32 or 32 bf16 numbers (AVX512-BF16), for what numba vectorises badly.

Addresses are int64 values; offsets are in bytes.
"""

from __future__ import annotations

import functools
import inspect
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

LANES = 16  # float32 numbers of a vector
I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


class _Bf16(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bf16)

    def __hash__(self) -> int:
        return hash(_Bf16)


FLOATS = ir.VectorType(F32, LANES)
_BITS = ir.VectorType(I32, LANES)
_HALF_BITS = ir.VectorType(ir.IntType(16), LANES)
_BYTES, _WORDS = (ir.VectorType(ir.IntType(bits), 2 * LANES) for bits in (8, 16))
_ALL_BYTES = ir.VectorType(ir.IntType(8), 4 * LANES)
_PAIRS = ir.VectorType(_Bf16(), 2 * LANES)
_BF16S = ir.VectorType(_Bf16(), LANES)

_EXP_SERIES = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
    1.0,
    1.0,
)
"""Cephes' polynomial for e^x around 0."""

Value = Any  # of llvmlite, which has no types


class VectorCode:
    """Emits instructions where the builder stands."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def at(self, address: Value, offset: int, element: Any) -> Value:
        return self.builder.inttoptr(self.builder.add(address, I64(offset)), element.as_pointer())

    def zeros(self) -> Value:
        return ir.Constant(FLOATS, [0.0] * LANES)

    def pairs(self, address: Value, offset: int = 0) -> Value:
        """32 bf16 numbers in memory order."""
        return self.builder.load(self.at(address, offset, _PAIRS), align=2)

    def fp8_pairs(self, address: Value, offset: int = 0) -> Value:
        """32 e4m3 numbers as bf16. Those below 2^-6, the smallest normal number, become 0; NaN becomes 480."""
        builder = self.builder
        stored = builder.load(self.at(address, offset, _BYTES), align=1)
        # Sign, exponent and mantissa to bf16's places; its exponent counts from 127, e4m3's from 7.
        moved = builder.shl(builder.sext(stored, _WORDS), _words(4))
        moved = builder.and_(moved, _words(0x87F0))
        has_exponent = builder.icmp_unsigned("!=", builder.and_(moved, _words(0x0780)), _words(0))
        numbers = builder.select(has_exponent, builder.add(moved, _words((127 - 7) << 7)), _words(0))
        return builder.bitcast(numbers, _PAIRS)

    def int8_pairs(self, address: Value, offset: int = 0) -> tuple[Value, Value]:
        """64 integers of int8 plus a half, as bf16: the 32 of the first halves of every 16 bytes, and those of the
        second. Needs AVX512-VBMI.

        A half more gives both signs the same 128 magnitudes. In a byte bit 7 is the sign, bit 6 the magnitude's last
        whole bit, and below are its others. A number's two bytes are looked up, the upper one by those alone."""
        builder = self.builder
        codes = builder.load(self.at(address, offset, _ALL_BYTES), align=1)
        magnitudes = [_bf16_bits(2 * (code % 64) + code // 64 + 0.5) for code in range(128)]
        lower = self._looked_up_bytes(codes, [bits & 255 for bits in magnitudes])
        upper = self._with_signs(self._looked_up_bytes(codes, [bits >> 8 for bits in magnitudes[:64]]), codes)
        first, second = (self._interleaved_halves(lower, upper, half) for half in (0, 1))
        return first, second

    def words(self, address: Value, offset: int = 0) -> Value:
        """32 words of 16 bits."""
        return self.builder.load(self.at(address, offset, _WORDS), align=2)

    def byte_pairs(self, address: Value, offset: int = 0) -> Value:
        """16 bytes, each repeated in two 16-bit words."""
        builder = self.builder
        stored = builder.load(self.at(address, offset, ir.VectorType(ir.IntType(8), LANES)), align=1)
        wide = builder.zext(stored, _BITS)
        return builder.bitcast(builder.or_(wide, builder.shl(wide, ir.Constant(_BITS, [16] * LANES))), _WORDS)

    def looked_up_pairs(self, words: Value, place: int, numbers: Sequence[float], offsets: Value | None) -> Value:
        """Look up one 4-bit element of each of 32 words in a table of bf16 numbers.

        A word holds four elements; `place` says which, 0 being the lowest bits. `numbers` has 16 entries; or 32 with
        `offsets` (words), which are added to the elements.
        """
        builder = self.builder
        index = builder.lshr(words, _words(4 * place)) if place else words
        if offsets is not None:
            index = builder.add(builder.and_(index, _words(15)), offsets)
        repeated = [*numbers] * (2 * LANES // len(numbers))
        table = ir.Constant(_WORDS, [_bf16_bits(number) for number in repeated])
        signature = ir.FunctionType(_WORDS, [_WORDS, _WORDS])
        look_up = builder.module.declare_intrinsic("llvm.x86.avx512.permvar.hi.512", (), signature)
        return builder.bitcast(builder.call(look_up, [table, index]), _PAIRS)  # by an index's last five bits

    def pair_for_all(self, address: Value, offset: int = 0) -> Value:
        """The two bf16 numbers at the address, repeated in all lanes."""
        pair = self.builder.load(self.at(address, offset, I32), align=2)
        return self.builder.bitcast(self._for_all(pair, _BITS), _PAIRS)

    def float_for_all(self, address: Value, offset: int = 0) -> Value:
        return self._for_all(self.builder.load(self.at(address, offset, F32), align=4), FLOATS)

    def floats(self, address: Value, offset: int = 0) -> Value:
        return self.builder.load(self.at(address, offset, FLOATS), align=4)

    def widened(self, address: Value, offset: int = 0) -> Value:
        """16 bf16 numbers as float32."""
        halves = self.builder.load(self.at(address, offset, _HALF_BITS), align=2)
        shift = ir.Constant(_BITS, [16] * LANES)
        return self.builder.bitcast(self.builder.shl(self.builder.zext(halves, _BITS), shift), FLOATS)

    def add_pair_products(self, total: Value, x: Value, y: Value) -> Value:
        """total[i] + x[2i] * y[2i] + x[2i + 1] * y[2i + 1], products exact (VDPBF16PS)."""
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        signature = ir.FunctionType(FLOATS, [FLOATS, _PAIRS, _PAIRS])
        return self.builder.call(self.builder.module.declare_intrinsic(name, (), signature), [total, x, y])

    def add_products(self, total: Value, x: Value, y: Value) -> Value:
        signature = ir.FunctionType(FLOATS, [FLOATS] * 3)
        return self.builder.call(self.builder.module.declare_intrinsic("llvm.fma.v16f32", (), signature), [x, y, total])

    def float_at(self, address: Value, offset: int = 0) -> Value:
        return self.builder.load(self.at(address, offset, F32), align=4)

    def store_float(self, value: Value, address: Value, offset: int = 0) -> None:
        self.builder.store(value, self.at(address, offset, F32), align=4)

    def for_all(self, value: Value) -> Value:
        """A float32 repeated in all lanes."""
        return self._for_all(value, FLOATS)

    def floats_for_all(self, value: float) -> Value:
        return ir.Constant(FLOATS, [value] * LANES)

    def ints_for_all(self, value: Value) -> Value:
        """An int64 that fits in 32 bits, repeated in all lanes."""
        return self._for_all(self.builder.trunc(value, I32), _BITS)

    def lane_numbers(self) -> Value:
        return ir.Constant(_BITS, list(range(LANES)))

    def larger(self, x: Value, y: Value) -> Value:
        """The maximum lane by lane; y where x is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", x, y), x, y)

    def exp(self, x: Value) -> Value:
        """e^x in each lane to about 2e-7; NaN for NaN and for +infinity."""
        builder = self.builder
        x = self.larger(self.floats_for_all(-104.0), x)  # e^x is 0 below it, and -infinity would leave no remainder
        power = self._call("llvm.rint.v16f32", builder.fmul(x, self.floats_for_all(1.4426950408889634)))
        rest = self.add_products(x, power, self.floats_for_all(-0.6931471805599453))
        series = self.floats_for_all(_EXP_SERIES[0])
        for factor in _EXP_SERIES[1:]:
            series = self.add_products(self.floats_for_all(factor), series, rest)
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        mask, current = ir.IntType(16), I32(4)
        signature = ir.FunctionType(FLOATS, [FLOATS, FLOATS, FLOATS, mask, I32])
        function = builder.module.declare_intrinsic(name, (), signature)
        return builder.call(function, [series, power, self.zeros(), mask(-1), current])

    def largest_of(self, vector: Value) -> Value:
        """The largest lane, NaN ignored."""
        signature = ir.FunctionType(F32, [FLOATS])
        function = self.builder.module.declare_intrinsic("llvm.vector.reduce.fmax.v16f32", (), signature)
        return self.builder.call(function, [vector])

    def sum_of(self, vector: Value) -> Value:
        signature = ir.FunctionType(F32, [F32, FLOATS])
        function = self.builder.module.declare_intrinsic("llvm.vector.reduce.fadd.v16f32", (), signature)
        return self.builder.call(function, [F32(-0.0), vector], fastmath=["reassoc"])

    def store_floats(self, vector: Value, address: Value, offset: int = 0) -> None:
        self.builder.store(vector, self.at(address, offset, FLOATS), align=4)

    def store_narrowed(self, vector: Value, address: Value, offset: int = 0) -> None:
        """Store as bf16, rounded to nearest."""
        self.builder.store(self.builder.fptrunc(vector, _BF16S), self.at(address, offset, _BF16S), align=2)

    def prefetch(self, address: Value, offset: int, *, level: int = 1) -> None:
        """To the cache of this level."""
        byte = ir.IntType(8)
        signature = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), I32, I32, I32])
        function = self.builder.module.declare_intrinsic("llvm.prefetch.p0", (), signature)
        self.builder.call(function, [self.at(address, offset, byte), I32(0), I32(4 - level), I32(1)])  # read, cached

    @contextmanager
    def repeated(self, count: Value, initial: Sequence[Value]) -> Iterator[Repetition]:
        """A loop over 0 .. count - 1, count at least 1. After it, `result` holds the carried values."""
        builder = self.builder
        before, body, behind = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(body)
        builder.position_at_end(body)
        phis = [builder.phi(value.type) for value in (I64(0), *initial)]
        for phi, value in zip(phis, (I64(0), *initial), strict=True):
            phi.add_incoming(value, before)
        repetition = Repetition(phis[0], phis[1:])
        yield repetition
        following = builder.add(phis[0], I64(1))
        for phi, value in zip(phis, (following, *repetition.result), strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, count), body, behind)
        builder.position_at_end(behind)

    def _call(self, name: str, x: Value) -> Value:
        """Call an intrinsic that takes and returns one vector."""
        function = self.builder.module.declare_intrinsic(name, (), ir.FunctionType(FLOATS, [FLOATS]))
        return self.builder.call(function, [x])

    def _looked_up_bytes(self, indexes: Value, table: Sequence[int]) -> Value:
        """table: of 64 or 128 bytes; the indexes' upper bits do not count."""
        name = "llvm.x86.avx512." + ("permvar.qi.512" if len(table) == 64 else "vpermi2var.qi.512")
        parts = [ir.Constant(_ALL_BYTES, list(table[i : i + 64])) for i in range(0, len(table), 64)]
        operands = [parts[0], indexes, *parts[1:]]
        signature = ir.FunctionType(_ALL_BYTES, [_ALL_BYTES] * len(operands))
        return self.builder.call(self.builder.module.declare_intrinsic(name, (), signature), operands)

    def _with_signs(self, magnitudes: Value, signs: Value) -> Value:
        """64 bytes with the uppermost bits of others."""
        return self.builder.or_(magnitudes, self.builder.and_(signs, ir.Constant(_ALL_BYTES, [0x80] * (4 * LANES))))

    def _interleaved_halves(self, lower: Value, upper: Value, half: int) -> Value:
        """32 words of 64 bytes each, of which every 16 give their first or second eight (VPUNPCK*BW)."""
        places = (16 * lane + 8 * half + byte for lane in range(4) for byte in range(8))
        order = [number for place in places for number in (place, place + 64)]
        mask = ir.Constant(ir.VectorType(I32, 64), order)
        return self.builder.bitcast(self.builder.shuffle_vector(lower, upper, mask), _PAIRS)

    def _for_all(self, value: Value, vector: Any) -> Value:
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(undefined, value, I32(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(_BITS, [0] * LANES))


@functools.cache
def has_vbmi() -> bool:
    """Whether code is compiled for a processor with AVX512-VBMI."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return "+avx512vbmi" in features.split(",")


def _bf16_bits(number: float) -> int:
    """The 16 bits of a number that bf16 represents exactly."""
    bits: int = struct.unpack("<I", struct.pack("<f", number))[0]
    return bits >> 16


def _words(value: int) -> Value:
    return ir.Constant(_WORDS, [value] * (2 * LANES))


class Repetition:
    """The loop of `VectorCode.repeated`: its index and carried values; set `result` to the values that the next round
    gets."""

    def __init__(self, index: Value, carried: Sequence[Value]) -> None:
        self.index = index
        self.carried = carried
        self.result = carried


def vector_function(generate: Callable[..., Value | None], returns: Any = types.void) -> Any:
    """Make a function that loops can call from generate(code, *arguments), which writes its instructions.

    Arguments are int64. One that is a constant where the loop is written, such as a size, reaches `generate` as a
    Python number. (Making a function per size would not work: numba finds a compiled loop on disk by the plain numbers
    that the loop's function encloses.)
    """

    def function(context: Any, *arguments: Any) -> Any:
        constants = [getattr(argument, "literal_value", None) for argument in arguments]

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            known = [v if c is None else c for c, v in zip(constants, values, strict=True)]
            result = generate(VectorCode(builder), *known)
            return context.get_dummy_value() if result is None else result

        passed = (types.int64 if c is None else a for c, a in zip(constants, arguments, strict=True))
        return returns(*passed), codegen

    vars(function)["__signature__"] = inspect.signature(generate)  # where numba reads how many arguments there are
    return intrinsic(prefer_literal=True)(function)
