"""A quantized weight as the plain matrix that it stands for (kernels/quantized_weight.py).

    out[n, k] = scales[n, g] * (element[n, k] - zeros[n, g])

Tensors (N output features, K input features): weight, a QuantizedWeight [N, K]; returns [N, K] of its dtype,
contiguous, new. fp32, rounded once. Not differentiable.
"""

from __future__ import annotations

from typing import no_type_check

from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import tl, triton
from kernels.quantized_weight import QuantizedWeight

_BLOCK_N = 32


def dequantize_reference(weight: QuantizedWeight) -> Tensor:
    return weight.dequantized()


@triton.jit
@no_type_check
def _dequantize_kernel(
    elements_ptr,
    scales_ptr,
    zeros_ptr,
    out_ptr,
    num_features,
    size,
    group_size,
    IS_INT4: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (rows, chunk): a chunk's input features, which are of one group, of BLOCK_N rows."""
    wait_for_inputs(PDL)
    feature = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N).to(tl.int64)
    place = tl.arange(0, WIDTH)
    chunk = tl.program_id(1)
    is_feature = feature < num_features
    first = chunk * 2 * WIDTH if IS_INT4 else chunk * WIDTH
    group = feature * (size // group_size) + first // group_size
    scale = tl.load(scales_ptr + group, mask=is_feature, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + feature[:, None] * size + first + place[None, :]
    dtype = out_ptr.dtype.element_ty
    if IS_INT4:
        elements_ptrs = elements_ptr + feature[:, None] * (size // 2) + chunk * WIDTH + place[None, :]
        packed = tl.load(elements_ptrs, mask=is_feature[:, None], other=0)
        zero = tl.full([BLOCK_N, 1], 8.0, tl.float32)
        if HAS_ZEROS:
            zero = tl.load(zeros_ptr + group, mask=is_feature, other=0).to(tl.float32)[:, None]
        low, high = (packed & 15).to(tl.float32) - zero, (packed >> 4).to(tl.float32) - zero
        tl.store(out_ptrs, (low * scale).to(dtype), mask=is_feature[:, None])
        tl.store(out_ptrs + WIDTH, (high * scale).to(dtype), mask=is_feature[:, None])
    else:
        is_cell = is_feature[:, None] & (first + place < size)[None, :]
        elements = tl.load(elements_ptr + feature[:, None] * size + first + place[None, :], mask=is_cell, other=0.0)
        tl.store(out_ptrs, (elements.to(tl.float32) * scale).to(dtype), mask=is_cell)


def dequantize_triton(weight: QuantizedWeight) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_features, size = weight.shape
    out = weight.new_empty(num_features, size)
    has_groups = weight.scales.shape[1] > 1
    width = weight.chunk // 2 if weight.is_int4 else min(weight.group_size, 128) if has_groups else 128
    num_chunks = triton.cdiv(size, 2 * width if weight.is_int4 else width)
    _dequantize_kernel[(triton.cdiv(num_features, _BLOCK_N), num_chunks)](
        weight.elements,
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        out,
        num_features,
        size,
        weight.group_size,
        IS_INT4=weight.is_int4,
        HAS_ZEROS=weight.zeros is not None,
        BLOCK_N=_BLOCK_N,
        WIDTH=width,
        num_warps=4,
        **dependent_launch(out.device),
    )
    return out


def dequantize(weight: QuantizedWeight) -> Tensor:
    return dequantize_triton(weight) if weight.is_cuda else dequantize_reference(weight)
