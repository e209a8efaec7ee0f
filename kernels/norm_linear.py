"""Projection of few tokens after a norm whose rows are still to be divided (kernels/linear_add_norm.py): the output is
divided instead of the input. For a merged gate and up projection (`gated`) the activation is included
(kernels/silu_and_mul.py).

    projected[m, n] = (sum_k weighted[m, k] * weight[n, k]) / sqrt(sum_s squares[s, m] / K + eps) + bias[n]
    out             = projected, or gated: out[m, i] = silu(projected[m, i]) * projected[m, N / 2 + i]

Tensors (M <= 64 rows, N output features, K input features):
    normed    weighted [M, K] bf16 or fp32, contiguous; squares [S, R] fp32, contiguous, R >= M; eps
    weight    [N, K]  like weighted, contiguous; or a QuantizedWeight for it (kernels/quantized_weight.py)
    bias      [N]     like weighted, contiguous; None for none
    arrivals          as in skinny_linear
    returns   [M, N], gated [M, N / 2]: like weighted, contiguous, new

Rounding: fp32 throughout, rounded once at the end; the reference also rounds the normed row, the projection and
silu(gate). A row's result does not depend on the other rows, nor on their number where skinny_linear's does not. M may
be 0. The reference is differentiable.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dependent_launch import start_dependents, wait_alone, wait_for_inputs
from kernels.linear_add_norm import DeferredNorm
from kernels.optional_triton import tl, triton
from kernels.ordered_tiles import STRIP
from kernels.pairwise_sum import pairwise_sum
from kernels.quantized_weight import Weight, dense
from kernels.silu_and_mul import silu_and_mul_reference
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
from kernels.spare_rows import empty_with_spare_rows


def norm_linear_reference(
    normed: DeferredNorm,
    weight: Weight,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    projected = F.linear(normed.divided(), dense(weight), bias)
    return silu_and_mul_reference(projected) if gated else projected


@triton.jit
@no_type_check
def divided_product(acc, divisor_squares, bias, size, eps, HAS_BIAS: tl.constexpr):
    """acc divided by the norm of its rows, plus the bias. The arguments have acc's shape or broadcast to it.
    divisor_squares: the sum of a row's squares. Rounds in the same way in every kernel that it is a part of."""
    factor = 1 / tl.sqrt(divisor_squares / size + eps)
    if HAS_BIAS:
        return tl.fma(acc, tl.broadcast_to(factor, acc.shape), tl.broadcast_to(bias, acc.shape))
    return acc * factor


@triton.jit
@no_type_check
def strips_squares(squares_ptr, stride, row, is_row, num_strips, BLOCK_S: tl.constexpr, HALVES: tl.constexpr):
    """Two tensors [BLOCK_S, rows] whose sum is needed: the squares of the strips, and zeros; with HALVES those of the
    even strips, and of the odd ones. Add them where they are needed, because the addition waits for the loads."""
    strip = tl.arange(0, BLOCK_S) * (2 if HALVES else 1)
    ptrs = squares_ptr + strip[:, None] * stride + row[None, :]
    first = tl.load(ptrs, mask=(strip < num_strips)[:, None] & is_row[None, :], other=0.0)
    second = tl.zeros(first.shape, tl.float32)
    if HALVES:
        second = tl.load(ptrs + stride, mask=(strip + 1 < num_strips)[:, None] & is_row[None, :], other=0.0)
    return first, second


@triton.jit
@no_type_check
def gated_product(gate, up):
    return gate / (1 + tl.exp(-gate)) * up


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _norm_linear_kernel(
    weighted_ptr,
    squares_ptr,
    weight_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    arrivals_ptr,
    partial_ptr,
    out_ptr,
    num_rows,
    num_out,  # features of a row of out
    num_parts,
    size,
    weight_stride_row,
    squares_stride_part,
    eps,
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    BLOCK_S: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    WARP_TILES: tl.constexpr,
    K_WARPS: tl.constexpr,
    LATE: tl.constexpr,
    ORDERED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (strip, split): BLOCK_N rows of the weight (GATED: half as many features) for all rows. What is needed at
    the end is loaded at the beginning. ORDERED: squares are summed as in kernels/ordered_linear.py, and what is divided
    is rounded before, as there."""
    if not LATE:
        start_dependents(PDL)
    row = tl.arange(0, BLOCK_M)
    place = tl.arange(0, BLOCK_N)
    if GATED:
        # Rows alternate, eight of gate, eight of up: in the tensor cores' result layout a pair is then in one thread.
        feature = tl.program_id(0) * (BLOCK_N // 2) + place // 16 * 8 + place % 8
        weight_row = feature + place // 8 % 2 * num_out
        num_features = 2 * num_out
    else:
        feature = tl.program_id(0) * BLOCK_N + place
        weight_row = feature
        num_features = num_out
    is_feature, is_row = feature < num_out, row < num_rows
    weight_ptrs = tile_ptrs(weight_ptr, weight_row, weight_stride_row, WIDTH)
    scales_ptrs = scale_ptrs(scales_ptr, weight_row, size, GROUP)
    zeros_ptrs = scale_ptrs(zeros_ptr, weight_row, size, GROUP)
    x_ptrs = tile_ptrs(weighted_ptr, row, size, WIDTH)
    if LATE:
        wait_alone(PDL)
    else:
        wait_for_inputs(PDL)
    squares, halves = strips_squares(squares_ptr, squares_stride_part, row, is_row, num_parts, BLOCK_S, HALVES)
    acc = strip_product(
        weight_ptrs, x_ptrs, scales_ptrs, zeros_ptrs, is_feature, is_row, weighted_ptr, size, num_rows, weight_ptr,
        weight_stride_row, scales_ptr, zeros_ptr, tl.program_id(0), num_out, size, GATED, FORM, GROUP, HAS_ZEROS,
        SPLITS, NUM_STAGES, WARP_TILES, K_WARPS,
    )  # fmt: skip
    if LATE:
        start_dependents(PDL)
    if SPLITS > 1:
        if not is_last_part(acc, partial_ptr, arrivals_ptr, weight_row, is_feature, num_features, SPLITS):
            return
        acc = merged_parts(partial_ptr, weight_row, is_feature, num_features, BLOCK_M, BLOCK_N, SPLITS)
    acc = scaled(acc, scales_ptrs, is_feature, FORM, GROUP)
    if ORDERED:
        acc = acc.to(out_ptr.dtype.element_ty).to(tl.float32)
        row_squares = pairwise_sum(squares + halves)
    else:
        row_squares = tl.sum(squares, 0)
    bias = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + weight_row, mask=is_feature, other=0.0).to(tl.float32)
    acc = divided_product(acc, row_squares[None, :], bias[:, None], size, eps, HAS_BIAS)
    if GATED:
        pairs = tl.permute(tl.reshape(acc, [BLOCK_N // 16, 2, 8, BLOCK_M]), [0, 2, 3, 1])
        gate, up = tl.split(pairs)
        out = tl.reshape(gated_product(gate, up), [BLOCK_N // 2, BLOCK_M])
        out_feature = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    else:
        out = acc
        out_feature = feature
    out_ptrs = out_ptr + row.to(tl.int64)[None, :] * num_out + out_feature[:, None]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=(out_feature < num_out)[:, None] & is_row[None, :])


def strips_of(num_strips: int, size: int) -> dict[str, Any]:
    """How an ordered kernel sums the squares of a row of `size` features: in strips of 64, or of fewer."""
    halves = num_strips > triton.cdiv(size, STRIP)
    return {"BLOCK_S": triton.next_power_of_2(triton.cdiv(num_strips, 2) if halves else num_strips), "HALVES": halves}


def norm_linear_triton(
    normed: DeferredNorm,
    weight: Weight,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    gated: bool = False,
    config: SkinnyConfig | None = None,
    *,
    ordered: bool = False,
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. config: None takes skinny_linear's. ordered: a row's squares
    are summed in one order (kernels/ordered_linear.py)."""
    weighted, squares, eps = normed
    check_skinny(weighted, weight, bias)
    num_rows, size = weighted.shape
    assert weighted.is_contiguous() and squares.is_contiguous()
    assert squares.dtype == torch.float32 and squares.shape[1] >= num_rows
    assert not gated or weight.shape[0] % 2 == 0
    num_out = weight.shape[0] // 2 if gated else weight.shape[0]
    out = empty_with_spare_rows((num_rows, num_out), weighted) if ordered else weighted.new_empty(num_rows, num_out)
    if out.numel():
        launch = skinny_launch(weighted, weight, arrivals, config)
        num_parts = squares.shape[0]
        _norm_linear_kernel[launch.grid](
            weighted,
            squares,
            *launch.weight,
            weighted if bias is None else bias,
            launch.arrivals,
            launch.partial,
            out,
            num_rows,
            num_out,
            num_parts,
            size,
            launch.weight_stride,
            squares.stride(0),
            eps,
            GATED=gated,
            HAS_BIAS=bias is not None,
            ORDERED=ordered,
            **(
                strips_of(num_parts, size)
                if ordered
                else {"BLOCK_S": triton.next_power_of_2(num_parts), "HALVES": False}
            ),
            **launch.constants,
        )
    return out


def norm_linear(
    normed: DeferredNorm,
    weight: Weight,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    run = norm_linear_triton if normed.weighted.is_cuda else norm_linear_reference
    return run(normed, weight, bias, arrivals, gated)
