"""A block of few rows times an expert's MXFP4 weight, in registers from the load to the sum. A part of kernels: the
faster twin of `grouped_product` (kernels/grouped_product.py) for bf16, as kernels/register_product.py is the twin of
`skinny_product`. That file explains the layout of threads.

    acc[m, n] = 2^-64 sum_k x[m, k] * weight[n, k]

A step of the loop takes a chunk, 128 elements of a row (64 bytes). A thread has 32 of them, one group
(kernels/mxfp4.py), with its scale. Masks and an integer product move two elements of a word at a time to bf16's bit
positions: sign, two bits of exponent, one of mantissa. There they are 2^126 times too small; the scale, as a bf16
number 2^62 times too large, makes up for a part. All results are normal numbers, and exact, for weights from 2^-61 to
2^65. Smaller ones may become zero.

With NUM_STAGES 2 a chunk's words and scales are loaded before the previous chunk is multiplied, and the loop is
unrolled by BLOCK_K / 128 chunks.

Warps may share rows and divide K among them (K_WARPS): if there are few weight rows, more loads are in flight. Their
sums are added in a fixed order.
"""

from __future__ import annotations

from typing import no_type_check

from kernels.optional_triton import tl, triton
from kernels.register_product import PAIRS_ASSEMBLY, SUMS, assembly_body, by_rows, mma, pairs

CHUNK = 128
"""Elements of a row in one step."""


def _numbers_assembly() -> str:
    """Inputs: words of the upper rows 32 to 35, of the lower rows 36 to 39, their factors 40 and 44. Outputs: what the
    MMA takes of each word: for each of its four positions (two bytes' halves), the upper row's numbers, then the lower
    row's."""
    code = "{\n.reg .b32 word, bits, nothing;\nmov.b32 nothing, 0x80008000;\n"
    for word in range(4):
        for half in range(2):
            code += f"mov.b32 word, ${32 + 4 * half + word};\n"
            for place in range(4):
                # A product moves four bits to two places: to where the sign is, and to where the rest is.
                mask, factor = ("0x000f000f", "0x1040") if place % 2 == 0 else ("0x00f000f0", "0x0104")
                code += "shr.b32 word, word, 8;\n" if place == 2 else ""
                code += f"and.b32 bits, word, {mask};\nmul.lo.u32 bits, bits, {factor};\n"
                code += "and.b32 bits, bits, 0x81c081c0;\n"
                out = f"${4 * (2 * place + half) + word}"
                code += f"fma.rn.bf16x2 {out}, bits, ${40 + 4 * half}, nothing;\n"
    return code + "}\n"


def _product_assembly() -> str:
    """Inputs: numbers 4 to 35; x 36 to 51: low halves' even and odd elements, then high halves'; sums 52 to 55."""
    code = ""
    for word in range(4):
        numbers = [f"${4 + 4 * i + word}" for i in range(8)]
        code += mma(SUMS, numbers[:4], [f"${36 + word}", f"${44 + word}"])
        code += mma(SUMS, numbers[4:], [f"${40 + word}", f"${48 + word}"])
    return assembly_body("unused", [f"${52 + i}" for i in range(4)], code)


if tl is not None:
    _NUMBERS_ASSEMBLY, _PRODUCT_ASSEMBLY = tl.constexpr(_numbers_assembly()), tl.constexpr(_product_assembly())
    _NUMBERS_OPERANDS = tl.constexpr(",".join(["=&r"] * 32 + ["r"] * 16))
    _PRODUCT_OPERANDS = tl.constexpr(",".join(["=f"] * 4 + ["r"] * 48 + ["f"] * 4))
    _RAISED = tl.constexpr(2.0**64)


@triton.jit
@no_type_check
def _numbers(upper, lower, upper_factors, lower_factors):
    """The words' numbers as the MMA takes them: the even ones of the low halves, of the high halves, the odd ones of
    the low halves, of the high halves; each for the upper rows, then for the lower rows."""
    return tl.inline_asm_elementwise(
        _NUMBERS_ASSEMBLY, _NUMBERS_OPERANDS, [upper, lower, upper_factors, lower_factors],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32, tl.int32, tl.int32, tl.int32, tl.int32),
        is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
@no_type_check
def _add(acc, a0, a1, a2, a3, a4, a5, a6, a7, low_even, low_odd, high_even, high_odd):
    return tl.inline_asm_elementwise(
        _PRODUCT_ASSEMBLY,
        _PRODUCT_OPERANDS,
        [a0, a1, a2, a3, a4, a5, a6, a7, low_even, low_odd, high_even, high_odd, acc],
        dtype=tl.float32,
        is_pure=True,
        pack=4,
    )


@triton.jit
@no_type_check
def _x_ptrs(x_ptr, stride_row, pairs_ptr, place, TOP_K: tl.constexpr):
    """For eight pairs' rows: pointers to the first words of each thread's group, and whether the pairs exist."""
    pair = tl.load(pairs_ptr + place % 8)
    word = tl.arange(0, 16)
    ptrs = x_ptr.to(tl.pointer_type(tl.int32)) + (pair // TOP_K).to(tl.int64)[:, None] * (stride_row // 2)
    return ptrs + (word // 4 * 16 + word % 4)[None, :], (pair >= 0)[:, None]


@triton.jit
@no_type_check
def _x_pairs(x_ptrs, chunk, is_there):
    """The group's even and odd elements of the low halves, then of the high halves."""
    x0 = tl.load(x_ptrs + chunk * 64, mask=is_there, other=0)
    x1 = tl.load(x_ptrs + (chunk * 64 + 4), mask=is_there, other=0)
    x2 = tl.load(x_ptrs + (chunk * 64 + 8), mask=is_there, other=0)
    x3 = tl.load(x_ptrs + (chunk * 64 + 12), mask=is_there, other=0)
    low_even, low_odd = pairs(x0, x1, PAIRS_ASSEMBLY)
    high_even, high_odd = pairs(x2, x3, PAIRS_ASSEMBLY)
    return low_even, low_odd, high_even, high_odd


@triton.jit
@no_type_check
def _factors(words):
    """[rows] of four scales each -> [rows, 16] of two bf16 numbers each: the scale of each thread's group."""
    shift = (tl.arange(0, 16) // 4 * 8)[None, :]
    return ((words[:, None] >> shift & 255) + 62) * 0x00800080


@triton.jit
@no_type_check
def _weight(words_ptr, scales_ptr, row, row_words, chunk, is_there, num_weight_rows, num_chunks):
    """Words and scales of a chunk for these rows of the expert's weight."""
    word = tl.arange(0, 16)[None, :]
    words = tl.load(words_ptr + (row * row_words)[:, None] + chunk[:, None] * 16 + word, mask=is_there, other=0)
    return words, tl.load(scales_ptr + chunk * num_weight_rows + row, mask=chunk < num_chunks, other=0)


@triton.jit
@no_type_check
def _asked(
    words_ptr, scales_ptr, upper0, lower0, upper1, lower1, row_words, chunk, num_groups, num_weight_rows, num_chunks,
    WARP_TILES: tl.constexpr,
):  # fmt: skip
    """`_weight` for the upper and lower rows of one tile or two."""
    is_there = chunk[:, None] * 4 + (tl.arange(0, 16) // 4)[None, :] < num_groups
    a0, b0 = _weight(words_ptr, scales_ptr, upper0, row_words, chunk, is_there, num_weight_rows, num_chunks)
    c0, d0 = _weight(words_ptr, scales_ptr, lower0, row_words, chunk, is_there, num_weight_rows, num_chunks)
    a1, b1, c1, d1 = a0, b0, c0, d0
    if WARP_TILES == 2:
        a1, b1 = _weight(words_ptr, scales_ptr, upper1, row_words, chunk, is_there, num_weight_rows, num_chunks)
        c1, d1 = _weight(words_ptr, scales_ptr, lower1, row_words, chunk, is_there, num_weight_rows, num_chunks)
    return a0, b0, c0, d0, a1, b1, c1, d1


@triton.jit
@no_type_check
def _add_chunk(
    acc00, acc01, acc02, acc03, acc10, acc11, acc12, acc13, upper, upper_scales, lower, lower_scales, other_upper,
    other_upper_scales, other_lower, other_lower_scales, x_ptrs0, x_ptrs1, x_ptrs2, x_ptrs3, is_row0, is_row1, is_row2,
    is_row3, chunk, num_groups, BLOCK_M: tl.constexpr, WARP_TILES: tl.constexpr,
):  # fmt: skip
    """Add a chunk's numbers times x to the sums of each (weight tile, x tile)."""
    at = chunk[:, None]
    is_there = at * 4 + (tl.arange(0, 16) // 4)[None, :] < num_groups
    p, q, r, s = _x_pairs(x_ptrs0, at, is_there & is_row0)
    a, b, c, d, e, f, g, h = _numbers(upper, lower, _factors(upper_scales), _factors(lower_scales))
    acc00 = _add(acc00, a, b, c, d, e, f, g, h, p, q, r, s)
    if WARP_TILES == 2:
        i, j, k, m, n, o, t, u = _numbers(
            other_upper, other_lower, _factors(other_upper_scales), _factors(other_lower_scales)
        )
        acc10 = _add(acc10, i, j, k, m, n, o, t, u, p, q, r, s)
    if BLOCK_M >= 16:
        p, q, r, s = _x_pairs(x_ptrs1, at, is_there & is_row1)
        acc01 = _add(acc01, a, b, c, d, e, f, g, h, p, q, r, s)
        if WARP_TILES == 2:
            acc11 = _add(acc11, i, j, k, m, n, o, t, u, p, q, r, s)
    if BLOCK_M == 32:
        p, q, r, s = _x_pairs(x_ptrs2, at, is_there & is_row2)
        acc02 = _add(acc02, a, b, c, d, e, f, g, h, p, q, r, s)
        if WARP_TILES == 2:
            acc12 = _add(acc12, i, j, k, m, n, o, t, u, p, q, r, s)
        p, q, r, s = _x_pairs(x_ptrs3, at, is_there & is_row3)
        acc03 = _add(acc03, a, b, c, d, e, f, g, h, p, q, r, s)
        if WARP_TILES == 2:
            acc13 = _add(acc13, i, j, k, m, n, o, t, u, p, q, r, s)
    return acc00, acc01, acc02, acc03, acc10, acc11, acc12, acc13


@triton.jit
@no_type_check
def _side_by_side(first, last):
    """Two [N, M] -> [N, 2 * M]."""
    return tl.reshape(tl.permute(tl.join(first, last), [0, 2, 1]), [first.shape[0], 2 * first.shape[1]])


@triton.jit
@no_type_check
def _tile(acc0, acc1, acc2, acc3, WARPS: tl.constexpr, K_WARPS: tl.constexpr, BLOCK_M: tl.constexpr):
    """[16 * WARPS, BLOCK_M] from pieces of eight columns each, as threads have them."""
    acc = by_rows(acc0, WARPS, K_WARPS)
    if BLOCK_M >= 16:
        acc = _side_by_side(acc, by_rows(acc1, WARPS, K_WARPS))
    if BLOCK_M == 32:
        last = _side_by_side(by_rows(acc2, WARPS, K_WARPS), by_rows(acc3, WARPS, K_WARPS))
        acc = _side_by_side(acc, last)
    return acc


@triton.jit
@no_type_check
def mxfp4_product(
    x_ptr,
    x_stride_row,
    pairs_ptr,
    values_ptr,
    values_stride_row,
    scales_ptr,
    expert,
    first_feature,
    num_features,
    size,
    TOP_K: tl.constexpr,
    GATED: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WARP_TILES: tl.constexpr,
    K_WARPS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """[BLOCK_M, BLOCK_N] fp32: rows of x, BLOCK_M = 8, 16 or 32, times BLOCK_N rows of the expert's weight. pairs_ptr:
    of the block; row pair // TOP_K of x belongs to a pair. values_stride_row: in bytes. first_feature: of num_features.
    GATED: a feature is two rows of the weight, a gate and an up, which alternate in the result; in the weight they
    alternate if IS_INTERLEAVED, else all gates come first."""
    WARPS: tl.constexpr = BLOCK_N // (16 * WARP_TILES)
    TURN: tl.constexpr = BLOCK_K // 128
    place = tl.arange(0, 8 * WARPS * K_WARPS)
    part = place // (8 * WARPS)
    place = place % (8 * WARPS)
    if GATED:
        feature0 = first_feature + place
        upper0 = tl.minimum(feature0, num_features - 1)
        upper1 = tl.minimum(feature0 + BLOCK_N // 4, num_features - 1)
        if IS_INTERLEAVED:
            upper0, upper1 = 2 * upper0, 2 * upper1
            lower0, lower1 = upper0 + 1, upper1 + 1
        else:
            lower0, lower1 = upper0 + num_features, upper1 + num_features
        num_weight_rows = 2 * num_features
    else:
        feature0 = first_feature + place // 8 * 16 + place % 8
        upper0 = tl.minimum(feature0, num_features - 1)
        lower0 = tl.minimum(feature0 + 8, num_features - 1)
        upper1 = tl.minimum(feature0 + BLOCK_N // 2, num_features - 1)
        lower1 = tl.minimum(feature0 + (BLOCK_N // 2 + 8), num_features - 1)
        num_weight_rows = num_features
    num_chunks = tl.cdiv(size, 128)
    x_ptrs0, is_row0 = _x_ptrs(x_ptr, x_stride_row, pairs_ptr, place, TOP_K)
    x_ptrs1, is_row1, x_ptrs2, is_row2, x_ptrs3, is_row3 = x_ptrs0, is_row0, x_ptrs0, is_row0, x_ptrs0, is_row0
    if BLOCK_M >= 16:
        x_ptrs1, is_row1 = _x_ptrs(x_ptr, x_stride_row, pairs_ptr + 8, place, TOP_K)
    if BLOCK_M == 32:
        x_ptrs2, is_row2 = _x_ptrs(x_ptr, x_stride_row, pairs_ptr + 16, place, TOP_K)
        x_ptrs3, is_row3 = _x_ptrs(x_ptr, x_stride_row, pairs_ptr + 24, place, TOP_K)
    num_groups = size // 32
    row_words = values_stride_row // 4
    words_ptr = values_ptr.to(tl.pointer_type(tl.int32)) + expert.to(tl.int64) * num_weight_rows * row_words
    scales_ptr += expert.to(tl.int64) * num_chunks * num_weight_rows
    # acc: digits are weight tile, x tile
    acc00 = tl.zeros([8 * WARPS * K_WARPS, 16], tl.float32)
    acc01, acc02, acc03, acc10, acc11, acc12, acc13 = acc00, acc00, acc00, acc00, acc00, acc00, acc00
    if NUM_STAGES == 1:
        for start in tl.range(0, num_chunks, TURN * K_WARPS, num_stages=1):
            for step in tl.static_range(TURN):
                chunk = start + step * K_WARPS + part
                a0, b0, c0, d0, a1, b1, c1, d1 = _asked(
                    words_ptr, scales_ptr, upper0, lower0, upper1, lower1, row_words, chunk, num_groups,
                    num_weight_rows, num_chunks, WARP_TILES,
                )  # fmt: skip
                acc00, acc01, acc02, acc03, acc10, acc11, acc12, acc13 = _add_chunk(
                    acc00, acc01, acc02, acc03, acc10, acc11, acc12, acc13, a0, b0, c0, d0, a1, b1, c1, d1,
                    x_ptrs0, x_ptrs1, x_ptrs2, x_ptrs3, is_row0, is_row1, is_row2, is_row3, chunk, num_groups, BLOCK_M,
                    WARP_TILES,
                )  # fmt: skip
    else:
        a0, b0, c0, d0, a1, b1, c1, d1 = _asked(
            words_ptr, scales_ptr, upper0, lower0, upper1, lower1, row_words, part, num_groups, num_weight_rows,
            num_chunks, WARP_TILES,
        )  # fmt: skip
        for start in tl.range(0, num_chunks, K_WARPS, num_stages=1, loop_unroll_factor=TURN):
            chunk = start + part
            i0, j0, k0, m0, i1, j1, k1, m1 = _asked(
                words_ptr, scales_ptr, upper0, lower0, upper1, lower1, row_words, chunk + K_WARPS, num_groups,
                num_weight_rows, num_chunks, WARP_TILES,
            )  # fmt: skip
            acc00, acc01, acc02, acc03, acc10, acc11, acc12, acc13 = _add_chunk(
                acc00, acc01, acc02, acc03, acc10, acc11, acc12, acc13, a0, b0, c0, d0, a1, b1, c1, d1,
                x_ptrs0, x_ptrs1, x_ptrs2, x_ptrs3, is_row0, is_row1, is_row2, is_row3, chunk, num_groups, BLOCK_M,
                WARP_TILES,
            )  # fmt: skip
            a0, b0, c0, d0, a1, b1, c1, d1 = i0, j0, k0, m0, i1, j1, k1, m1
    acc = _tile(acc00, acc01, acc02, acc03, WARPS, K_WARPS, BLOCK_M)
    if WARP_TILES == 2:
        other = _tile(acc10, acc11, acc12, acc13, WARPS, K_WARPS, BLOCK_M)
        acc = tl.reshape(tl.permute(tl.join(acc, other), [2, 0, 1]), [BLOCK_N, BLOCK_M])
    if GATED:
        # Eight gates, then eight ups -> alternating.
        turns = tl.permute(tl.reshape(acc, [BLOCK_N // 16, 2, 8, BLOCK_M]), [3, 0, 2, 1])
        acc = tl.reshape(turns, [BLOCK_M, BLOCK_N])
    else:
        acc = tl.trans(acc)
    return acc * _RAISED
