"""Projection of few tokens into the residual stream, with the following norm except its division, in one launch:
kernels/skinny_linear.py and add_rms_norm of kernels/rms_norm.py.

    sum[m, n]      = sum_k x[m, k] * weight[n, k] + bias[n] + residual[m, n]
    weighted[m, n] = sum[m, n] * norm_weight[n]
    squares        : parts of sum_n sum[m, n]^2

A norm's divisor needs the whole row, but each program of a projection has only a strip of it. So each program stores
the squares of its strip, and the kernel that multiplies the norm's result next, kernels/norm_linear.py, divides its own
output.

Tensors (M <= 64 rows, N output features, K input features):
    x            [M, K]  bf16 or fp32, last stride 1; rows may be strided
    weight       [N, K]  like x, contiguous; or a QuantizedWeight for x (kernels/quantized_weight.py)
    bias         [N]     like x, contiguous; None for none
    residual     [M, N]  like x, contiguous; read only
    norm_weight  [N]     like x, contiguous
    arrivals             as in skinny_linear
    returns              DeferredNorm of norm_weight, and sum [M, N] like x, contiguous, new

Rounding: fp32 products and sums. The sum is rounded to x's dtype (it is the next residual). Its squares are of the
rounded sum. `weighted` too is made from the rounded sum and rounded again: in bf16 that costs as much accuracy before
the division as after. The reference also rounds the product, and so does `ordered`. A row's result does not depend on
the other rows, nor on their number where skinny_linear's does not. M may be 0. The reference is differentiable.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dependent_launch import start_dependents, wait_alone, wait_for_inputs
from kernels.optional_triton import tl, triton
from kernels.ordered_tiles import STRIP
from kernels.pairwise_sum import column_strips
from kernels.quantized_weight import Weight, dense
from kernels.skinny_config import SkinnyConfig
from kernels.skinny_linear import (
    check_skinny,
    is_last_part,
    merged_parts,
    scale_ptrs,
    scaled,
    skinny_launch,
    strip_product,
    tile_ptrs,
)


class DeferredNorm(NamedTuple):
    """A normed stream whose rows are still to be divided: weighted / sqrt(squares.sum(0) / N + eps).

    weighted [M, N]; squares [S, R] fp32, R >= M, of which only the first M columns count.
    """

    weighted: Tensor
    squares: Tensor
    eps: float

    def divided(self) -> Tensor:
        """[M, N] like `weighted`, by torch."""
        num_rows, size = self.weighted.shape
        mean_square = self.squares[:, :num_rows].sum(0) / size
        return (self.weighted * (mean_square + self.eps).rsqrt()[:, None]).to(self.weighted.dtype)


def linear_add_norm_reference(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    arrivals: Tensor | None = None,
) -> tuple[DeferredNorm, Tensor]:
    total = F.linear(x, dense(weight), bias) + residual
    return DeferredNorm(total * norm_weight, total.float().pow(2).sum(-1)[None], eps), total


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _linear_add_norm_kernel(
    x_ptr,
    weight_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    residual_ptr,
    norm_weight_ptr,
    arrivals_ptr,
    partial_ptr,
    total_ptr,
    weighted_ptr,
    squares_ptr,  # [strips, BLOCK_M]; ORDERED, [strips of NUM_SUMS, BLOCK_M]
    num_rows,
    num_features,
    size,
    x_stride_row,
    weight_stride_row,
    HAS_BIAS: tl.constexpr,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    WARP_TILES: tl.constexpr,
    K_WARPS: tl.constexpr,
    LATE: tl.constexpr,
    ORDERED: tl.constexpr,
    NUM_SUMS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (strip, split): BLOCK_N output features of all rows. What is needed at the end is loaded at the
    beginning. ORDERED: rounds and sums squares as kernels/ordered_linear.py does."""
    if not LATE:
        start_dependents(PDL)
    strip = tl.program_id(0)
    feature = strip * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_M)
    is_feature, is_row = feature < num_features, row < num_rows
    is_cell = is_feature[:, None] & is_row[None, :]
    cell = row.to(tl.int64)[None, :] * num_features + feature[:, None]
    weight_ptrs = tile_ptrs(weight_ptr, feature, weight_stride_row, WIDTH)
    scales_ptrs = scale_ptrs(scales_ptr, feature, size, GROUP)
    zeros_ptrs = scale_ptrs(zeros_ptr, feature, size, GROUP)
    x_ptrs = tile_ptrs(x_ptr, row, x_stride_row, WIDTH)
    if LATE:
        wait_alone(PDL)
    else:
        wait_for_inputs(PDL)
    residual = tl.load(residual_ptr + cell, mask=is_cell, other=0.0)
    norm_weight = tl.load(norm_weight_ptr + feature, mask=is_feature, other=0.0)
    acc = strip_product(
        weight_ptrs, x_ptrs, scales_ptrs, zeros_ptrs, is_feature, is_row, x_ptr, x_stride_row, num_rows, weight_ptr,
        weight_stride_row, scales_ptr, zeros_ptr, strip, num_features, size, False, FORM, GROUP, HAS_ZEROS, SPLITS,
        NUM_STAGES, WARP_TILES, K_WARPS,
    )  # fmt: skip
    if LATE:
        start_dependents(PDL)
    if SPLITS > 1:
        if not is_last_part(acc, partial_ptr, arrivals_ptr, feature, is_feature, num_features, SPLITS):
            return
        acc = merged_parts(partial_ptr, feature, is_feature, num_features, BLOCK_M, BLOCK_N, SPLITS)
    acc = scaled(acc, scales_ptrs, is_feature, FORM, GROUP)
    if ORDERED:
        acc = acc.to(total_ptr.dtype.element_ty).to(tl.float32)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)[:, None]
    rounded = (acc + residual.to(tl.float32)).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + cell, rounded, mask=is_cell)
    total = rounded.to(tl.float32)
    weighted = total * norm_weight.to(tl.float32)[:, None]
    tl.store(weighted_ptr + cell, weighted.to(weighted_ptr.dtype.element_ty), mask=is_cell)
    if ORDERED:
        strips = strip * NUM_SUMS + tl.arange(0, NUM_SUMS)
        square_ptrs = squares_ptr + strips[:, None] * BLOCK_M + row[None, :]
        tl.store(square_ptrs, column_strips(total * total), mask=is_row[None, :])
    else:
        tl.store(squares_ptr + strip * BLOCK_M + row, tl.sum(total * total, 0), mask=is_row)


def linear_add_norm_triton(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    arrivals: Tensor | None = None,
    config: SkinnyConfig | None = None,
    *,
    ordered: bool = False,
) -> tuple[DeferredNorm, Tensor]:
    """On CUDA tensors, or on any in Triton's interpreter. config: None takes skinny_linear's. ordered: round and sum
    squares as kernels/ordered_linear.py does; block_n is then 32 or a multiple of 64."""
    check_skinny(x, weight, bias)
    num_rows, num_features = x.shape[0], weight.shape[0]
    assert residual.shape == (num_rows, num_features) and residual.is_contiguous()
    assert norm_weight.shape == (num_features,) and norm_weight.is_contiguous()
    assert x.dtype == residual.dtype == norm_weight.dtype
    total, weighted = torch.empty_like(residual), torch.empty_like(residual)
    if not total.numel():
        return DeferredNorm(weighted, total.new_empty((1, num_rows), dtype=torch.float32), eps), total
    launch = skinny_launch(x, weight, arrivals, config)
    num_sums = max(1, launch.constants["BLOCK_N"] // STRIP) if ordered else 1
    squares = torch.empty((launch.grid[0] * num_sums, launch.block_m), dtype=torch.float32, device=x.device)
    _linear_add_norm_kernel[launch.grid](
        x,
        *launch.weight,
        x if bias is None else bias,
        residual,
        norm_weight,
        launch.arrivals,
        launch.partial,
        total,
        weighted,
        squares,
        num_rows,
        num_features,
        x.shape[1],
        x.stride(0),
        launch.weight_stride,
        HAS_BIAS=bias is not None,
        ORDERED=ordered,
        NUM_SUMS=num_sums,
        **launch.constants,
    )
    return DeferredNorm(weighted, squares, eps), total


def linear_add_norm(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    arrivals: Tensor | None = None,
) -> tuple[DeferredNorm, Tensor]:
    run = linear_add_norm_triton if x.is_cuda else linear_add_norm_reference
    return run(x, weight, bias, residual, norm_weight, eps, arrivals)
