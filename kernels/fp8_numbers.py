"""Converts e4m3 elements to a wider type inside kernels. NaN becomes 480."""

from __future__ import annotations

from typing import no_type_check

from kernels.optional_triton import tl, triton


@triton.jit
@no_type_check
def fp8_numbers(elements, dtype: tl.constexpr):
    """e4m3 elements as `dtype`, exact."""
    if dtype == tl.bfloat16:
        # Triton's own conversion goes through fp16 and fp32, at a quarter of the rate at which memory delivers
        # elements. Shifted to bf16's bit positions, exponent and mantissa make a number that is 2^120 times too small.
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 low, high, low_moved, high_moved, factor, nothing;
            mov.b32 factor, 0x7b807b80;
            mov.b32 nothing, 0x80008000;
            prmt.b32 low, $2, 0, 0x1404;
            prmt.b32 high, $2, 0, 0x3424;
            shr.b32 low_moved, low, 4;
            shr.b32 high_moved, high, 4;
            and.b32 low_moved, low_moved, 0x07f007f0;
            and.b32 high_moved, high_moved, 0x07f007f0;
            lop3.b32 low, low, 0x80008000, low_moved, 0xea;
            lop3.b32 high, high, 0x80008000, high_moved, 0xea;
            fma.rn.bf16x2 $0, low, factor, nothing;
            fma.rn.bf16x2 $1, high, factor, nothing;
            }
            """,
            "=r,=r,r",
            [elements.to(tl.uint8, bitcast=True)],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    else:  # noqa: RET505 - of the two, the compiler is to see one
        return elements.to(dtype)


@triton.jit
@no_type_check
def fp8_pairs(pairs, dtype: tl.constexpr):
    """uint16, each holding two e4m3 elements -> the first elements and the second elements as `dtype`, exact.

    Tensor cores take pairs that are adjacent along the sum. If these are not adjacent in memory, bytes would have to be
    fetched one by one; pairs can be transposed by `ldmatrix`.
    """
    if dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 low, high, low_moved, high_moved, factor, nothing;
            mov.b32 factor, 0x7b807b80;
            mov.b32 nothing, 0x80008000;
            shl.b32 low, $2, 8;
            shl.b32 low_moved, $2, 4;
            shr.b32 high_moved, $2, 4;
            and.b32 low_moved, low_moved, 0x07f007f0;
            and.b32 high_moved, high_moved, 0x07f007f0;
            lop3.b32 low, low, 0x80008000, low_moved, 0xea;
            lop3.b32 high, $2, 0x80008000, high_moved, 0xea;
            fma.rn.bf16x2 $0, low, factor, nothing;
            fma.rn.bf16x2 $1, high, factor, nothing;
            }
            """,
            "=r,=r,r",
            [pairs],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:  # noqa: RET505 - of the two, the compiler is to see one
        first = (pairs & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(dtype)
        return first, (pairs >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(dtype)
