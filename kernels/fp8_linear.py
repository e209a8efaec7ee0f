"""Linear projection with tensor cores that multiply fp8: for batches with too many rows for skinny_linear, and too few
for the tiles of large products to fill a GPU.

    out[m, n] = x_scales[m] * weight_scales[n] * sum_k x[m, k] * weight[n, k] + bias[n]

Tensors (M <= 256 rows, N output features, K input features, multiples of 16):
    x         [M, K]  float8_e4m3fn, contiguous, and x_scales [M, 1] fp32: from kernels/fp8_rows.py
    weight    [N, K]  fp8 QuantizedWeight for bf16, with one scale per channel (kernels/quantized_weight.py)
    bias      [N]     bf16, contiguous; None for none
    arrivals  [A]     as in kernels/skinny_linear.py; None: K is not split
    returns   [M, N]  bf16, contiguous, new

Rounding: products are exact, sums as the tensor cores make them ("fast accumulation"), rounded once at the end. A row's
result does not depend on the other rows, nor on their number up to 16, from 17 to 64, or above. M may be 0. Not
differentiable.

For more than 16 rows on an H100 or H200, where it was faster, the twin with an explicit loop computes it
(kernels/fp8_units.py). This kernel uses the parts of kernels/skinny_linear.py, but its elements go to the tensor cores
as they are. skinny_linear widens them to 16 bits, which takes longer at 64 rows than memory takes to deliver them.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, start_dependents, wait_for_inputs
from kernels.fp8_units import fp8_units_config, fp8_units_triton
from kernels.fp8_units import takes as units_take
from kernels.optional_triton import tl, triton
from kernels.quantized_weight import FP8, QuantizedWeight
from kernels.skinny_config import MAX_ROWS, SkinnyConfig
from kernels.skinny_linear import is_last_part, merged_parts, tile_ptrs

MAX_FP8_ROWS = 256
_FEW_ROWS, _MANY_ROWS_TILE = 16, 128


def fp8_linear_config(num_rows: int, num_features: int, size: int) -> SkinnyConfig:
    """The best of 25 to 29 configs on one H200 (torch 2.11, triton 3.6). At Llama-8B's qkv, output, gate_up and down,
    us, without the rounding of x: 16 rows 10.1, 8.4, 30.9, 19.0, 64 rows 11.6, 9.8, 34.1, 21.9, 256 rows 16.1, 12.5,
    56.4, 36.2. skinny_linear takes 12.9, 9.4, 39.5, 23.5, and 19.6, 14.9, 72.5, 39.7. With 4 stages and K in 4 parts,
    64 rows took 13.3, 12.1, 35.7 and 24.1 (gate_up: strips of 128).
    """
    is_narrow, is_wide = num_features <= 4608, num_features > 12288
    if num_rows > MAX_ROWS:
        return SkinnyConfig(64, 128, 4, 6) if is_narrow else SkinnyConfig(128, 128, 8, 3 if is_wide else 4)
    if is_wide:
        return SkinnyConfig(64, 128, num_warps=4, num_stages=3)
    num_splits = (4 if num_features <= 2048 else 2) if is_narrow and size > 2048 else 1
    return SkinnyConfig(64, 128, num_warps=4, num_stages=6, num_splits=num_splits)


def fp8_linear_reference(
    x: Tensor, x_scales: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, arrivals: Tensor | None = None
) -> Tensor:
    product = (x.float() @ weight.elements.float().T) * x_scales * weight.scales.float().T
    return (product if bias is None else product + bias.float()).to(weight.dtype)


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _fp8_linear_kernel(
    x_ptr,
    x_scales_ptr,
    weight_ptr,
    weight_scales_ptr,
    bias_ptr,
    arrivals_ptr,
    partial_ptr,
    out_ptr,
    num_rows,
    num_features,
    size,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    TILES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (strip, split): BLOCK_N output features of one of TILES tiles of rows; the tiles of a strip have adjacent
    program ids."""
    start_dependents(PDL)
    feature = tl.program_id(0) // TILES * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(0) % TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    is_feature, is_row = feature < num_features, row < num_rows
    weight_ptrs, x_ptrs = tile_ptrs(weight_ptr, feature, size, BLOCK_K), tile_ptrs(x_ptr, row, size, BLOCK_K)
    k = tl.arange(0, BLOCK_K)
    num_tiles = tl.cdiv(size, BLOCK_K)
    begin = tl.program_id(1) * num_tiles // SPLITS * BLOCK_K
    end = tl.minimum((tl.program_id(1) + 1) * num_tiles // SPLITS * BLOCK_K, size)
    wait_for_inputs(PDL)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=NUM_STAGES):
        is_k = (start + k < size)[None, :]
        weight = tl.load(weight_ptrs + start, mask=is_feature[:, None] & is_k, other=0.0)
        x = tl.load(x_ptrs + start, mask=is_row[:, None] & is_k, other=0.0)
        acc = tl.dot(weight, tl.trans(x), acc)
    if SPLITS > 1:
        if not is_last_part(acc, partial_ptr, arrivals_ptr, feature, is_feature, num_features, SPLITS):
            return
        acc = merged_parts(partial_ptr, feature, is_feature, num_features, BLOCK_M, BLOCK_N, SPLITS)
    acc *= tl.load(weight_scales_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)[:, None]
    acc *= tl.load(x_scales_ptr + row, mask=is_row, other=0.0)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + row.to(tl.int64)[None, :] * num_features + feature[:, None]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=is_feature[:, None] & is_row[None, :])


def fp8_linear_triton(
    x: Tensor,
    x_scales: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    config: SkinnyConfig | None = None,
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. `config` is for measuring: None takes the table's."""
    (num_rows, size), num_features = x.shape, weight.shape[0]
    assert num_rows <= MAX_FP8_ROWS and x.dtype == weight.elements.dtype == FP8 and x.is_contiguous()
    assert x_scales.shape == (num_rows, 1) and x_scales.dtype == torch.float32 and x_scales.is_contiguous()
    assert weight.shape[1] == size and weight.scales.shape[1] == 1
    assert bias is None or (bias.shape == (num_features,) and bias.is_contiguous())
    out = torch.empty((num_rows, num_features), dtype=weight.dtype, device=x.device)
    if not out.numel():
        return out
    config = config or fp8_linear_config(num_rows, num_features, size)
    block_m = _FEW_ROWS if num_rows <= _FEW_ROWS else MAX_ROWS if num_rows <= MAX_ROWS else _MANY_ROWS_TILE
    num_strips, num_tiles = triton.cdiv(num_features, config.block_n), triton.cdiv(num_rows, block_m)
    num_splits = 1 if arrivals is None or num_tiles > 1 else config.num_splits
    partial: Tensor = x_scales
    if num_splits > 1:
        assert arrivals is not None and arrivals.dtype == torch.int32 and arrivals.shape[0] >= num_strips
        assert num_splits * num_features * block_m < 2**31
        partial = torch.empty((num_splits, num_features, block_m), dtype=torch.float32, device=x.device)
    _fp8_linear_kernel[num_strips * num_tiles, num_splits](
        x,
        x_scales,
        weight.elements,
        weight.scales,
        out if bias is None else bias,
        x_scales if arrivals is None else arrivals,
        partial,
        out,
        num_rows,
        num_features,
        size,
        HAS_BIAS=bias is not None,
        BLOCK_M=block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        SPLITS=num_splits,
        NUM_STAGES=config.num_stages,
        TILES=num_tiles,
        num_warps=config.num_warps,
        **dependent_launch(x.device),
    )
    return out


def fp8_linear(
    x: Tensor, x_scales: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, arrivals: Tensor | None = None
) -> Tensor:
    if not x.is_cuda:
        return fp8_linear_reference(x, x_scales, weight, bias)
    if (config := fp8_units_config(x.shape[0], *weight.shape)) is not None and units_take(x, weight):
        return fp8_units_triton(x, x_scales, weight, bias, arrivals, config)
    return fp8_linear_triton(x, x_scales, weight, bias, arrivals)
