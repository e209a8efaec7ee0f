"""Few rows times a quantized weight, in registers from the load to the sum. A part of kernels, like `skinny_product` of
kernels/skinny_linear.py; it is the faster twin for one to eight rows of bf16.

    acc[n, m] = sum_k x[m, k] * weight[n, k], without the one scale that a channel may have

A thread loads 16 bytes of a row of the weight, widens them and passes them to the tensor core in the order in which
they lie. The tensor core sums over K in whatever order it gets, as long as x has the same order. So nothing goes
through shared memory, threads do not wait for each other, and elements need no reordering: int4 takes 1.9 instructions
per element instead of 3.8, fp8 2.6 instead of 4.6.

    fp8     shifts and masks move two elements of a word at a time to bf16's bit positions, which makes them 2^120
            times too small. x is made 2^60 times larger, and so is the sum at the end: all numbers in between are
            normal fp32 numbers
    int4    two elements at a time become the last bits of a bf16 number of 128, which makes them 128 too large. The
            excess, and the zeros, are subtracted from each group's sum with the help of x's sum, which the tensor core
            computes too

Layout of threads. mma.m16n8k16 takes from thread t of a warp rows t // 4 and t // 4 + 8 of the weight, and row t // 4
of x; each four threads have all of K between them. Triton lays out a load of 8 rows of 64 bytes in the same way, 16
bytes per thread and four threads per row, if addresses are known to be multiples of 16 bytes; and its inline assembly
gets four adjacent words of a thread at once. tests/kernels/test_sm90_compile.py checks that.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton
from kernels.quantized_weight import QuantizedWeight

MOST_ROWS = 8
CHUNK_BYTES = 64
"""Bytes of a weight row per step: 64 elements of fp8, 128 of int4."""
_INT4_CHUNK = 128
_ALIGNMENT = 16


def takes(x: Tensor, weight: QuantizedWeight) -> bool:
    """Whether the layouts of these rows and this weight allow it."""
    if not 0 < x.shape[0] <= MOST_ROWS or x.dtype != torch.bfloat16:
        return False
    if x.data_ptr() % _ALIGNMENT or x.stride(0) % _ALIGNMENT or weight.elements.data_ptr() % _ALIGNMENT:
        return False
    if weight.elements.shape[1] % CHUNK_BYTES:
        return False
    if weight.is_int4:
        return weight.chunk == _INT4_CHUNK
    return weight.scales.shape[1] == 1 or weight.group_size % CHUNK_BYTES == 0


SUMS = ["c0", "c1", "c2", "c3"]


def mma(sums: list[str], a: list[str], b: list[str]) -> str:
    """Adds sixteen rows of a times eight rows of b to four sums per thread."""
    operands = ", ".join(f"{{{', '.join(each)}}}" for each in (sums, a, b, sums))
    return f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {operands};\n"


def assembly_body(registers: str, begin: list[str], code: str) -> str:
    """begin: the initial values of the sums c0, c1, ..., which become the outputs."""
    first = "".join(f"mov.f32 c{i}, {value};\n" for i, value in enumerate(begin))
    last = "".join(f"mov.f32 ${i}, c{i};\n" for i in range(len(begin)))
    return f"{{\n.reg .f32 c<{len(begin)}>;\n.reg .b32 {registers};\n{first}{code}{last}}}\n"


def _fp8_assembly() -> str:
    """Inputs: words of the upper rows 4 to 7, of the lower rows 8 to 11, x 12 to 19, sums 20 to 23. Bytes 0 and 2 of a
    word first, then 1 and 3."""
    code = ""
    for word in range(4):
        for half, operand in enumerate((f"${4 + word}", f"${8 + word}")):
            code += f"""
                shl.b32 sign, {operand}, 8;
                shl.b32 rest, {operand}, 4;
                and.b32 rest, rest, 0x07f007f0;
                lop3.b32 even{half}, sign, 0x80008000, rest, 0xea;
                shr.b32 rest, {operand}, 4;
                and.b32 rest, rest, 0x07f007f0;
                lop3.b32 odd{half}, {operand}, 0x80008000, rest, 0xea;
            """
        code += mma(SUMS, ["even0", "even1", "odd0", "odd1"], [f"${12 + word}", f"${16 + word}"])
    return assembly_body("sign, rest, even<2>, odd<2>", [f"${20 + i}" for i in range(4)], code)


_ZEROS = ["0f00000000"] * 4


def _int4_assembly() -> str:
    """Inputs: words of the upper rows 4 to 7, of the lower rows 8 to 11; x 12 to 27: low halves' even and odd elements,
    then high halves'. A word's 4-bit elements, from the lowest bits: low even, high even, low odd, high odd."""
    code = ""
    for word in range(4):
        for half, operand in enumerate((f"${4 + word}", f"${8 + word}")):
            for place in range(4):
                moved = operand
                if place:
                    moved = "moved"
                    code += f"shr.b32 moved, {operand}, {4 * place};\n"
                code += f"lop3.b32 a{2 * place + half}, {moved}, 0x000f000f, 0x43004300, 0xea;\n"
        code += mma(SUMS, ["a0", "a1", "a2", "a3"], [f"${12 + word}", f"${20 + word}"])
        code += mma(SUMS, ["a4", "a5", "a6", "a7"], [f"${16 + word}", f"${24 + word}"])
    return assembly_body("moved, a<8>", _ZEROS, code)


def _sums_assembly() -> str:
    """Inputs: x 4 to 19, as in `_int4_assembly`."""
    code = "mov.b32 one, 0x3f803f80;\n"
    for word in range(4):
        for even_or_odd in (4, 8):
            code += mma(SUMS, ["one"] * 4, [f"${even_or_odd + word}", f"${even_or_odd + 8 + word}"])
    return assembly_body("one", _ZEROS, code)


def _pairs_assembly(is_scaled: bool) -> str:
    """Inputs: eight words of x, 8 to 15, the first four and the last four. Outputs: their even elements, then their odd
    ones."""
    code = "{\n.reg .b32 factor, nothing, pair<8>;\nmov.b32 factor, 0x5d805d80;\nmov.b32 nothing, 0x80008000;\n"
    for i in range(8):
        first = 8 + 2 * (i % 4)
        code += f"prmt.b32 pair{i}, ${first}, ${first + 1}, {'0x5410' if i < 4 else '0x7632'};\n"
    for i in range(8):
        code += f"fma.rn.bf16x2 ${i}, pair{i}, factor, nothing;\n" if is_scaled else f"mov.b32 ${i}, pair{i};\n"
    return code + "}\n"


PAIRS_ASSEMBLY: Any = None
"""For kernels in other files; None without Triton."""

if tl is not None:
    _FP8_ASSEMBLY, _INT4_ASSEMBLY = tl.constexpr(_fp8_assembly()), tl.constexpr(_int4_assembly())
    _SUMS_ASSEMBLY = tl.constexpr(_sums_assembly())
    PAIRS_ASSEMBLY = tl.constexpr(_pairs_assembly(False))
    _SCALED_PAIRS_ASSEMBLY = tl.constexpr(_pairs_assembly(True))
    _FP8_OPERANDS = tl.constexpr(",".join(["=f"] * 4 + ["r"] * 16 + ["f"] * 4))
    _INT4_OPERANDS = tl.constexpr(",".join(["=f"] * 4 + ["r"] * 24))
    _SUMS_OPERANDS = tl.constexpr(",".join(["=f"] * 4 + ["r"] * 16))
    _PAIRS_OPERANDS = tl.constexpr(",".join(["=&r"] * 8 + ["r"] * 8))
    _UNSCALED = tl.constexpr(2.0**60)


@triton.jit
@no_type_check
def pairs(first, last, ASSEMBLY: tl.constexpr):
    """For each two words of x the even and the odd elements: what one word of the weight is multiplied by."""
    return tl.inline_asm_elementwise(
        ASSEMBLY, _PAIRS_OPERANDS, [first, last], dtype=(tl.int32, tl.int32), is_pure=True, pack=4
    )


@triton.jit
@no_type_check
def _words(ptr, row, stride, at, is_there, EVICTION: tl.constexpr):
    """[rows, 16]: a chunk of each of these rows of the weight."""
    chunk = tl.arange(0, 16)[None, :] + at[:, None] * 16
    ptrs = ptr + row.to(tl.int64)[:, None] * (stride // 4) + chunk
    return tl.load(ptrs, mask=is_there[:, None], other=0, eviction_policy=EVICTION)


@triton.jit
@no_type_check
def _of_both(ptr, upper, lower, size, at, is_there, GROUP: tl.constexpr):
    """[rows, 16] fp32: this group's scales or zeros for the fragment's rows: of every four words the first two belong
    to the upper row."""
    is_upper = (tl.arange(0, 16) % 4 < 2)[None, :]
    if GROUP > 0:
        groups = size // GROUP
        above = tl.load(ptr + upper * groups + at, mask=is_there, other=0).to(tl.float32)
        below = tl.load(ptr + lower * groups + at, mask=is_there, other=0).to(tl.float32)
    else:
        above = tl.load(ptr + upper, mask=is_there, other=0).to(tl.float32)
        below = tl.load(ptr + lower, mask=is_there, other=0).to(tl.float32)
    return tl.where(is_upper, above[:, None], below[:, None])


@triton.jit
@no_type_check
def _asked(
    weight_ptr, upper0, lower0, upper1, lower1, stride, at, end, WARP_TILES: tl.constexpr, EVICTION: tl.constexpr
):  # fmt: skip
    """A chunk's words of the upper and lower rows of one tile or two."""
    is_there = at < end
    above0 = _words(weight_ptr, upper0, stride, at, is_there, EVICTION)
    below0 = _words(weight_ptr, lower0, stride, at, is_there, EVICTION)
    above1, below1 = above0, below0
    if WARP_TILES == 2:
        above1 = _words(weight_ptr, upper1, stride, at, is_there, EVICTION)
        below1 = _words(weight_ptr, lower1, stride, at, is_there, EVICTION)
    return above0, below0, above1, below1


@triton.jit
@no_type_check
def _add_int4(
    acc, above, below, scales_ptr, zeros_ptr, upper, lower, size, at, is_there, low_even, low_odd, high_even, high_odd,
    sums, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
):  # fmt: skip
    part = tl.inline_asm_elementwise(
        _INT4_ASSEMBLY,
        _INT4_OPERANDS,
        [above, below, low_even, low_odd, high_even, high_odd],
        dtype=tl.float32,
        is_pure=True,
        pack=4,
    )
    group = at * 128 // GROUP if GROUP > 0 else 0
    if HAS_ZEROS:
        part -= (_of_both(zeros_ptr, upper, lower, size, group, is_there, GROUP) + 128) * sums
    else:
        part -= 136 * sums
    if GROUP > 0:
        part *= _of_both(scales_ptr, upper, lower, size, group, is_there, GROUP)
    return acc + part


@triton.jit
@no_type_check
def _add_fp8(
    acc, above, below, scales_ptr, upper, lower, size, at, is_there, even, odd, GROUP: tl.constexpr
):  # fmt: skip
    begin = tl.zeros(acc.shape, tl.float32) if GROUP > 0 else acc
    part = tl.inline_asm_elementwise(
        _FP8_ASSEMBLY, _FP8_OPERANDS, [above, below, even, odd, begin], dtype=tl.float32, is_pure=True, pack=4
    )
    if GROUP > 0:
        part = acc + part * _of_both(scales_ptr, upper, lower, size, at * 64 // GROUP, is_there, GROUP)
    return part


@triton.jit
@no_type_check
def _add_chunk(
    acc0, acc1, above0, below0, above1, below1, scales_ptr, zeros_ptr, upper0, lower0, upper1, lower1, size, x_ptrs,
    is_row, at, end, FORM: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, WARP_TILES: tl.constexpr,
):  # fmt: skip
    """Adds the products of the words and x to the sums of one tile or two."""
    is_there = at < end
    x_at, is_x = at[:, None], is_row & is_there[:, None]
    if FORM == 2:
        x0 = tl.load(x_ptrs + x_at * 64, mask=is_x, other=0)
        x1 = tl.load(x_ptrs + (x_at * 64 + 4), mask=is_x, other=0)
        x2 = tl.load(x_ptrs + (x_at * 64 + 32), mask=is_x, other=0)
        x3 = tl.load(x_ptrs + (x_at * 64 + 36), mask=is_x, other=0)
        low_even, low_odd = pairs(x0, x1, PAIRS_ASSEMBLY)
        high_even, high_odd = pairs(x2, x3, PAIRS_ASSEMBLY)
        sums = tl.inline_asm_elementwise(
            _SUMS_ASSEMBLY,
            _SUMS_OPERANDS,
            [low_even, low_odd, high_even, high_odd],
            dtype=tl.float32,
            is_pure=True,
            pack=4,
        )
        acc0 = _add_int4(
            acc0, above0, below0, scales_ptr, zeros_ptr, upper0, lower0, size, at, is_there, low_even, low_odd,
            high_even, high_odd, sums, GROUP, HAS_ZEROS,
        )  # fmt: skip
        if WARP_TILES == 2:
            acc1 = _add_int4(
                acc1, above1, below1, scales_ptr, zeros_ptr, upper1, lower1, size, at, is_there, low_even, low_odd,
                high_even, high_odd, sums, GROUP, HAS_ZEROS,
            )  # fmt: skip
    else:
        x0 = tl.load(x_ptrs + x_at * 32, mask=is_x, other=0)
        x1 = tl.load(x_ptrs + (x_at * 32 + 4), mask=is_x, other=0)
        even, odd = pairs(x0, x1, _SCALED_PAIRS_ASSEMBLY)
        acc0 = _add_fp8(acc0, above0, below0, scales_ptr, upper0, lower0, size, at, is_there, even, odd, GROUP)
        if WARP_TILES == 2:
            acc1 = _add_fp8(acc1, above1, below1, scales_ptr, upper1, lower1, size, at, is_there, even, odd, GROUP)
    return acc0, acc1


@triton.jit
@no_type_check
def by_rows(acc, WARPS: tl.constexpr, K_WARPS: tl.constexpr):
    """[8 * WARPS * K_WARPS, 16] as threads have it -> [16 * WARPS, 8], the weight's rows by x's, summed over the warps
    that share rows."""
    if K_WARPS > 1:
        acc = tl.sum(tl.reshape(acc, [K_WARPS, 8 * WARPS, 16]), 0)
    fragments = tl.reshape(acc, [WARPS, 8, 4, 2, 2])
    return tl.reshape(tl.permute(fragments, [0, 3, 1, 2, 4]), [16 * WARPS, 8])


@triton.jit
@no_type_check
def first_places(BLOCK_N: tl.constexpr, WARP_TILES: tl.constexpr, K_WARPS: tl.constexpr):
    """The places, in a strip of BLOCK_N rows, of the first tile's upper rows. The lower rows are 8 further; the next
    tile is BLOCK_N / WARP_TILES further. Repeated for warps that share rows."""
    place = tl.arange(0, K_WARPS * BLOCK_N // (2 * WARP_TILES)) % (BLOCK_N // (2 * WARP_TILES))
    return place // 8 * 16 + place % 8


@triton.jit
@no_type_check
def register_product(
    x_ptr,
    x_stride_row,
    num_rows,
    weight_ptr,
    weight_stride_row,
    scales_ptr,
    zeros_ptr,
    upper_row,
    upper_end,
    half_step,
    lower_end,
    tile_step,
    size,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
    WARP_TILES: tl.constexpr,
    K_WARPS: tl.constexpr,
    SPLITS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """[BLOCK_N, 8] fp32 over the split's part of K, like `skinny_product`. WIDTH: bytes of a row per iteration of a
    warp. NUM_STAGES 2 or 3: words are loaded one or two chunks ahead, and the loop is unrolled. K_WARPS: so many warps
    share the weight's rows and take chunks in turn. upper_row: rows of the weight at `first_places`; the lower rows are
    half_step further, those of the second tile tile_step. upper_end, lower_end: row numbers are clamped below these."""
    WARPS: tl.constexpr = BLOCK_N // (16 * WARP_TILES)
    TURN: tl.constexpr = WIDTH // 64
    weight_ptr = weight_ptr.to(tl.pointer_type(tl.int32))
    place = tl.arange(0, 8 * WARPS * K_WARPS)
    x_row, part = place % 8, place // (8 * WARPS)
    word = tl.arange(0, 16)
    x_ptrs = x_ptr.to(tl.pointer_type(tl.int32)) + x_row.to(tl.int64)[:, None] * (x_stride_row // 2)
    x_ptrs += (word // 4 * 8 + word % 4)[None, :]
    is_row = (x_row < num_rows)[:, None]
    upper0, lower0 = tl.minimum(upper_row, upper_end - 1), tl.minimum(upper_row + half_step, lower_end - 1)
    upper1 = tl.minimum(upper_row + tile_step, upper_end - 1)
    lower1 = tl.minimum(upper_row + tile_step + half_step, lower_end - 1)
    num_chunks = size // (128 if FORM == 2 else 64)
    begin = tl.program_id(1) * num_chunks // SPLITS
    end = (tl.program_id(1) + 1) * num_chunks // SPLITS
    acc0 = tl.zeros([8 * WARPS * K_WARPS, 16], tl.float32)
    acc1 = tl.zeros([8 * WARPS * K_WARPS, 16], tl.float32)
    if NUM_STAGES == 1:
        for chunk in tl.range(begin, end, TURN * K_WARPS, num_stages=1):
            for i in tl.static_range(TURN):
                at = chunk + i * K_WARPS + part
                a0, b0, a1, b1 = _asked(
                    weight_ptr, upper0, lower0, upper1, lower1, weight_stride_row, at, end, WARP_TILES, ""
                )
                acc0, acc1 = _add_chunk(
                    acc0, acc1, a0, b0, a1, b1, scales_ptr, zeros_ptr, upper0, lower0, upper1, lower1, size, x_ptrs,
                    is_row, at, end, FORM, GROUP, HAS_ZEROS, WARP_TILES,
                )  # fmt: skip
    else:
        # Words are read once, and must not displace scales and x from the L1 cache.
        AHEAD: tl.constexpr = "evict_first"
        at = begin + part
        a0, b0, a1, b1 = _asked(
            weight_ptr, upper0, lower0, upper1, lower1, weight_stride_row, at, end, WARP_TILES, AHEAD
        )
        c0, d0, c1, d1 = a0, b0, a1, b1
        if NUM_STAGES == 3:
            c0, d0, c1, d1 = _asked(
                weight_ptr, upper0, lower0, upper1, lower1, weight_stride_row, at + K_WARPS, end, WARP_TILES, AHEAD
            )
        for chunk in tl.range(begin, end, K_WARPS, num_stages=1, loop_unroll_factor=TURN):
            at = chunk + part
            e0, f0, e1, f1 = _asked(
                weight_ptr, upper0, lower0, upper1, lower1, weight_stride_row, at + (NUM_STAGES - 1) * K_WARPS, end,
                WARP_TILES, AHEAD,
            )  # fmt: skip
            acc0, acc1 = _add_chunk(
                acc0, acc1, a0, b0, a1, b1, scales_ptr, zeros_ptr, upper0, lower0, upper1, lower1, size, x_ptrs,
                is_row, at, end, FORM, GROUP, HAS_ZEROS, WARP_TILES,
            )  # fmt: skip
            if NUM_STAGES == 3:
                a0, b0, a1, b1 = c0, d0, c1, d1
                c0, d0, c1, d1 = e0, f0, e1, f1
            else:
                a0, b0, a1, b1 = e0, f0, e1, f1
    if WARP_TILES == 2:
        both = tl.permute(tl.join(by_rows(acc0, WARPS, K_WARPS), by_rows(acc1, WARPS, K_WARPS)), [2, 0, 1])
        acc = tl.reshape(both, [BLOCK_N, 8])
    else:
        acc = by_rows(acc0, WARPS, K_WARPS)
    if FORM == 1:
        acc *= _UNSCALED
    return acc
