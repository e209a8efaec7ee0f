"""MXFP4 weights (OCP Microscaling Formats 1.0): 4-bit numbers, with an 8-bit scale for every 32.

    value = scale * number        number = +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}        scale = 2^(byte - 127)

Tensors (K numbers, a multiple of 32, in any leading dims):
    numbers  [..., K / 2]   uint8: byte j of a group's 16 has the group's number j in its low half and its number j + 16
                            in the high half; the highest bit of a half is the sign
    scales   [..., K / 32]  uint8
    returns  [..., K]       in the requested dtype: bf16 and fp32 hold every value, except below 2^-126

A checkpoint has adjacent numbers in a byte; `halves_apart` reorders them once. A kernel that separates low and high
halves then has two tiles of adjacent numbers, and needs no shuffle (`mxfp4_halves`). One-byte scales are too narrow for
efficient loads: kernels have the scales of four groups (128 numbers) in a word, with the words of adjacent rows side by
side (`pack_scales`). This file has no kernel of its own: the products in kernels/grouped_product.py and
mxfp4_product.py read numbers and packed scales.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.optional_triton import tl, triton

GROUP = 32
"""Numbers per scale."""
_WORD = 4

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NUMBERS = (*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES))
"""Indexed by the four bits."""


def halves_apart(numbers: Tensor) -> Tensor:
    """[..., K / 2] as in a checkpoint (number 2 i in byte i's low half, 2 i + 1 in its high half) -> in this file's
    order."""
    pairs = numbers.unflatten(-1, (-1, GROUP // 2))
    in_order = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
    low, high = in_order.chunk(2, dim=-1)
    return (low | high << 4).flatten(-2)


def pack_scales(scales: Tensor) -> Tensor:
    """[..., N, K / 32] uint8 -> [..., C, N] int32: C words of four scales per row, the first in the lowest byte; the
    last word is padded with zeros."""
    missing = -scales.shape[-1] % _WORD
    words = F.pad(scales, (0, missing)).contiguous().view(torch.int32)
    return words.mT.contiguous()


def unpack_scales(words: Tensor, size: int) -> Tensor:
    """The inverse of `pack_scales`, for rows of `size` numbers."""
    scales = words.mT.contiguous().view(torch.uint8)
    return scales[..., : size // GROUP].contiguous()


def dequantize_mxfp4(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    table = torch.tensor(NUMBERS, dtype=dtype, device=numbers.device)
    by_group = numbers.unflatten(-1, (-1, GROUP // 2))
    groups = table[torch.cat((by_group & 15, by_group >> 4), dim=-1).int()]
    values: Tensor = groups * torch.exp2(scales.float() - 127).to(dtype)[..., None]
    return values.flatten(-2)


@triton.jit
@no_type_check
def mxfp4_halves(numbers, scales, dtype: tl.constexpr):
    """numbers [N, K / 2] uint8, scales [N, K / 32] int32 -> two tensors [N, K / 2]: the low halves' values and the high
    ones'."""
    if dtype == tl.bfloat16:
        # PRMT looks up the two bytes of a bf16 number, for a half without its sign, in tables of eight bytes.
        low, high = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 first, second, upper, lower, signs, raised, table_upper, table_lower;
            mov.b32 table_upper, 0x3f3f3f00;
            mov.b32 table_lower, 0xc0800000;
            and.b32 first, $4, 0x77777777;
            shr.b32 second, first, 16;
            prmt.b32 upper, table_upper, 0x40404040, first;
            prmt.b32 lower, table_lower, 0xc0804000, first;
            prmt.b32 signs, $4, 0, 0x1404;
            shl.b32 raised, signs, 4;
            prmt.b32 $0, lower, upper, 0x6240;
            prmt.b32 $2, lower, upper, 0x7351;
            lop3.b32 $0, raised, 0x80008000, $0, 0xea;
            lop3.b32 $2, signs, 0x80008000, $2, 0xea;
            prmt.b32 upper, table_upper, 0x40404040, second;
            prmt.b32 lower, table_lower, 0xc0804000, second;
            prmt.b32 signs, $4, 0, 0x3424;
            shl.b32 raised, signs, 4;
            prmt.b32 $1, lower, upper, 0x6240;
            prmt.b32 $3, lower, upper, 0x7351;
            lop3.b32 $1, raised, 0x80008000, $1, 0xea;
            lop3.b32 $3, signs, 0x80008000, $3, 0xea;
            }
            """,
            "=&r,=&r,=&r,=&r,r",
            [numbers],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
        factors = (scales << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        low, high = _numbers(numbers & 15, dtype), _numbers(numbers >> 4, dtype)
        factors = (scales << 23).to(tl.float32, bitcast=True).to(dtype)
    return _scaled(low, factors), _scaled(high, factors)


@triton.jit
@no_type_check
def _numbers(halves, dtype: tl.constexpr):
    """Built as a float's bits: for numbers from 1 on, the number's own exponent and mantissa, shifted to a float's
    positions."""
    bits = halves.to(tl.int32)
    magnitude = bits & 7
    magnitude = tl.where(magnitude < 2, magnitude * (126 << 23), (magnitude << 22) + (126 << 23))
    return (magnitude | ((bits & 8) << 28)).to(tl.float32, bitcast=True).to(dtype)


@triton.jit
@no_type_check
def _scaled(halves, factors):
    by_group = halves.reshape([factors.shape[0], factors.shape[1], halves.shape[1] // factors.shape[1]])
    return (by_group * factors[:, :, None]).reshape(halves.shape)
