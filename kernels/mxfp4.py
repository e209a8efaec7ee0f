"""MXFP4 weights (OCP Microscaling Formats 1.0): numbers of four bits, each 32 of them with a scale of eight.

    value = scale * number        number = +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}        scale = 2^(byte - 127)

Tensors (K numbers, a multiple of 32, in any leading dims):
    numbers  [..., K / 2]   uint8: number 2 i in the low half of byte i, 2 i + 1 in the high half; the highest bit of a
                            half is the sign
    scales   [..., K / 32]  uint8
    returns  [..., K]       of the dtype that is asked for: bf16 and fp32 hold every value, except below 2^-126

`mxfp4_values` is the same inside a kernel. There is no kernel of its own: the products of kernels/grouped_product.py
read numbers and scales as they are.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

GROUP = 32
"""Numbers of a scale."""

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantize_mxfp4(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    table = torch.tensor([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], dtype=dtype, device=numbers.device)
    halves = torch.stack((numbers & 15, numbers >> 4), dim=-1).flatten(-2).int()
    groups = table[halves].unflatten(-1, (-1, GROUP))
    values: Tensor = groups * torch.exp2(scales.float() - 127).to(dtype)[..., None]
    return values.flatten(-2)


@triton.jit
@no_type_check
def mxfp4_values(numbers, scales, GROUP_SIZE: tl.constexpr):
    """numbers [N, K / 2], scales [N, K / GROUP_SIZE], both uint8 -> [N, K] fp32."""
    BLOCK_N: tl.constexpr = numbers.shape[0]
    NUM_GROUPS: tl.constexpr = scales.shape[1]
    bits = numbers.to(tl.int32)
    halves = tl.interleave(bits & 15, bits >> 4)
    magnitude = halves & 7
    # As a float's bits: from 1 on the number's own exponent and mantissa, moved to where a float has them.
    magnitude = tl.where(magnitude < 2, magnitude * (126 << 23), (magnitude << 22) + (126 << 23))
    values = (magnitude | ((halves & 8) << 28)).to(tl.float32, bitcast=True)
    factors = (scales.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    groups = values.reshape([BLOCK_N, NUM_GROUPS, GROUP_SIZE]) * factors[:, :, None]
    return groups.reshape([BLOCK_N, NUM_GROUPS * GROUP_SIZE])
