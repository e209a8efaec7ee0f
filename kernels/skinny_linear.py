"""Linear projection of few tokens: a decode step's GEMM, whose time is the reading of the weight.

    out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]

Tensors (M <= 64 rows, N output features, K input features):
    x         [M, K]  bf16 or fp32, last stride 1; rows may be strided
    weight    [N, K]  like x, contiguous, as torch keeps it; or a QuantizedWeight for x (kernels/quantized_weight.py),
                      then M <= 256
    bias      [N]     like x, contiguous; None for none
    arrivals  [A]     from `new_arrivals` for at least N features: the kernel's counts of a strip's finished parts. Zero
                      between launches, so for one stream at a time. None: K is not split
    returns   [M, N]  like x, contiguous, new

Rounding: fp32 products (never tf32) and sums, rounded once at the end; elements of quantized weights are not rounded,
because the products are scaled instead. A row's result does not depend on the other rows, nor on their number within 1
to 16, 17 to 64, or above; for quantized weights that kernels/register_product.py takes, within 1 to 8, 9 to 16, and
above as for others. Offsets are int64. M may be 0. The reference is differentiable.

A program computes a strip of output features. Up to 16 rows it takes all of K, so nothing has to be merged, and if N
allows it all programs of a launch are resident at once: then memory serves equal streams from all of them until the
end. With more rows, x should be read less often, so strips are wide. If there are few strips, K is split, and the
program that finishes a strip's last part merges them. Above 64 rows (quantized weights only) several programs share a
strip, and all but the first read its weights from L2.

Projections that do more in their launch are built from the same parts: kernels/linear_add_norm.py, norm_linear.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dependent_launch import dependent_launch, start_dependents, wait_alone, wait_for_inputs
from kernels.fp8_numbers import fp8_numbers
from kernels.optional_triton import tl, triton
from kernels.quantized_weight import QuantizedWeight, Weight, dense
from kernels.register_product import MOST_ROWS as MOST_REGISTER_ROWS
from kernels.register_product import first_places, register_product, takes
from kernels.skinny_config import (
    FEW_ROWS,
    MAX_QUANTIZED_ROWS,
    MAX_ROWS,
    SkinnyConfig,
    quantized_config,
    register_config,
    skinny_config,
)

_MANY_ROWS_TILE = 128
_PLAIN, _FP8, _INT4 = 0, 1, 2
_MIN_BLOCK_N = 32
_MAX_REGISTERS = 255
"""Passed to the compiler, so that it uses the registers it needs. By default it saves registers: the copies of one
iteration share a register for their addresses, and each waits for the one before. Llama-8B's down projection then takes
4 us more."""


def new_arrivals(num_features: int, device: torch.device) -> Tensor:
    return torch.zeros(-(-num_features // _MIN_BLOCK_N), dtype=torch.int32, device=device)


def skinny_linear_reference(
    x: Tensor, weight: Weight, bias: Tensor | None = None, arrivals: Tensor | None = None
) -> Tensor:
    return F.linear(x, dense(weight), bias)


@triton.jit
@no_type_check
def tile_ptrs(ptr, row, stride_row, WIDTH: tl.constexpr):
    """[rows, WIDTH]: the first tile of these rows. Call it before the wait for inputs, which
    then hides the arithmetic."""
    return ptr + row.to(tl.int64)[:, None] * stride_row + tl.arange(0, WIDTH)[None, :]


@triton.jit
@no_type_check
def scale_ptrs(ptr, row, size, GROUP: tl.constexpr):
    """[rows]: the first group's scale, or zero, of these weight rows."""
    if GROUP > 0:
        return ptr + row.to(tl.int64) * (size // GROUP)
    return ptr + row


@triton.jit
@no_type_check
def int4_numbers(packed, zeros, dtype: tl.constexpr):
    """packed [rows, K] uint8: the low and the high halves, each minus zeros [rows] fp32, in x's dtype, exact."""
    if dtype == tl.bfloat16:
        # 0x4300 is 128 with a last bit worth 1: with an element in its last bits it is the element plus 128.
        low, high = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 first, second, first_high, second_high;
            prmt.b32 first, $4, 0, 0x4140;
            prmt.b32 second, $4, 0, 0x4342;
            shr.b32 first_high, first, 4;
            shr.b32 second_high, second, 4;
            lop3.b32 $0, first, 0x000f000f, 0x43004300, 0xea;
            lop3.b32 $1, second, 0x000f000f, 0x43004300, 0xea;
            lop3.b32 $2, first_high, 0x000f000f, 0x43004300, 0xea;
            lop3.b32 $3, second_high, 0x000f000f, 0x43004300, 0xea;
            }
            """,
            "=r,=r,=r,=r,r",
            [packed],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
        raised_zeros = (zeros + 128).to(tl.bfloat16)[:, None]
        return low - raised_zeros, high - raised_zeros
    else:  # noqa: RET505 - of the two, the compiler is to see one
        return (packed & 15).to(dtype) - zeros[:, None], (packed >> 4).to(dtype) - zeros[:, None]


@triton.jit
@no_type_check
def skinny_product(
    weight_ptrs,
    x_ptrs,
    scales_ptrs,
    zeros_ptrs,
    is_feature,
    is_row,
    size,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    SPLITS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """[BLOCK_N, BLOCK_M] fp32: these rows of the weight times these rows of x, over the split's part of K. The weight
    is the left operand, because it has full tiles. FORM: 0 plain, 1 fp8, 2 int4. GROUP: input features that share a
    scale, which is multiplied here; 0: `scaled` does it at the end."""
    BLOCK_N: tl.constexpr = weight_ptrs.shape[0]
    BLOCK_M: tl.constexpr = x_ptrs.shape[0]
    WIDTH: tl.constexpr = x_ptrs.shape[1]
    BLOCK_K: tl.constexpr = 2 * WIDTH if FORM == 2 else WIDTH
    dtype: tl.constexpr = x_ptrs.dtype.element_ty
    split = tl.program_id(1)
    k = tl.arange(0, WIDTH)
    begin, end = 0, size
    if SPLITS > 1:
        num_tiles = tl.cdiv(size, BLOCK_K)
        begin = split * num_tiles // SPLITS * BLOCK_K
        end = tl.minimum((split + 1) * num_tiles // SPLITS * BLOCK_K, size)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=NUM_STAGES):
        if FORM == 2:
            packed = tl.load(weight_ptrs + start // 2, mask=is_feature[:, None], other=0)
            low_x = tl.load(x_ptrs + start, mask=is_row[:, None], other=0.0)
            high_x = tl.load(x_ptrs + (start + WIDTH), mask=is_row[:, None], other=0.0)
            zeros = tl.full([BLOCK_N], 8.0, tl.float32)
            if HAS_ZEROS:
                group = start // GROUP if GROUP > 0 else 0
                zeros = tl.load(zeros_ptrs + group, mask=is_feature, other=0).to(tl.float32)
            part = tl.zeros([BLOCK_N, BLOCK_M], tl.float32) if GROUP > 0 else acc
            low, high = int4_numbers(packed, zeros, dtype)
            part = tl.dot(low, tl.trans(low_x), part, input_precision="ieee")
            part = tl.dot(high, tl.trans(high_x), part, input_precision="ieee")
        else:
            is_k = (start + k < size)[None, :]
            weight = tl.load(weight_ptrs + start, mask=is_feature[:, None] & is_k, other=0.0)
            x = tl.load(x_ptrs + start, mask=is_row[:, None] & is_k, other=0.0)
            part = tl.zeros([BLOCK_N, BLOCK_M], tl.float32) if GROUP > 0 else acc
            if FORM == 1:
                weight = fp8_numbers(weight, dtype)
            part = tl.dot(weight, tl.trans(x), part, input_precision="ieee")
        if GROUP > 0:
            scales = tl.load(scales_ptrs + start // GROUP, mask=is_feature, other=0.0)
            acc += part * scales.to(tl.float32)[:, None]
        else:
            acc = part
    return acc


@triton.jit
@no_type_check
def strip_product(
    weight_ptrs,
    x_ptrs,
    scales_ptrs,
    zeros_ptrs,
    is_feature,
    is_row,
    x_ptr,
    x_stride_row,
    num_rows,
    weight_ptr,
    weight_stride_row,
    scales_ptr,
    zeros_ptr,
    strip,
    num_out,
    size,
    GATED: tl.constexpr,
    FORM: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    SPLITS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    WARP_TILES: tl.constexpr,
    K_WARPS: tl.constexpr,
):
    """[BLOCK_N, BLOCK_M] fp32: a strip of the weight's rows times the rows of x, over the split's part of K; with
    `skinny_product`, or in registers if WARP_TILES. GATED: the strip alternates eight rows of num_out gates and eight
    of ups; otherwise its rows are adjacent. Takes pointers to the strip's rows (`tile_ptrs`, `scale_ptrs`) and to the
    tensors."""
    BLOCK_N: tl.constexpr = weight_ptrs.shape[0]
    WIDTH: tl.constexpr = x_ptrs.shape[1]
    if WARP_TILES > 0:
        first = first_places(BLOCK_N, WARP_TILES, K_WARPS)
        step: tl.constexpr = BLOCK_N // WARP_TILES
        if GATED:  # a tile's upper half is gates, its lower half ups
            acc = register_product(
                x_ptr, x_stride_row, num_rows, weight_ptr, weight_stride_row, scales_ptr, zeros_ptr,
                strip * (BLOCK_N // 2) + first // 16 * 8 + first % 8, num_out, num_out, 2 * num_out, step // 2, size,
                FORM, GROUP, HAS_ZEROS, BLOCK_N, WIDTH, WARP_TILES, K_WARPS, SPLITS,
                NUM_STAGES,
            )  # fmt: skip
        else:
            acc = register_product(
                x_ptr, x_stride_row, num_rows, weight_ptr, weight_stride_row, scales_ptr, zeros_ptr,
                strip * BLOCK_N + first, num_out, 8, num_out, step, size,
                FORM, GROUP, HAS_ZEROS, BLOCK_N, WIDTH, WARP_TILES, K_WARPS, SPLITS,
                NUM_STAGES,
            )  # fmt: skip
    else:
        acc = skinny_product(
            weight_ptrs, x_ptrs, scales_ptrs, zeros_ptrs, is_feature, is_row, size, FORM, GROUP, HAS_ZEROS, SPLITS,
            NUM_STAGES,
        )  # fmt: skip
    return acc


@triton.jit
@no_type_check
def scaled(acc, scales_ptrs, is_feature, FORM: tl.constexpr, GROUP: tl.constexpr):
    """acc [BLOCK_N, BLOCK_M] times the one scale of each channel, if there is one."""
    if FORM > 0 and GROUP == 0:
        acc *= tl.load(scales_ptrs, mask=is_feature, other=0.0).to(tl.float32)[:, None]
    return acc


@triton.jit
@no_type_check
def is_last_part(part, partial_ptr, arrivals_ptr, weight_row, is_feature, num_features, SPLITS: tl.constexpr):
    """Stores the split's part of a strip. Returns whether all parts are done now, so that this
    program must merge them."""
    BLOCK_M: tl.constexpr = part.shape[1]
    strip, split = tl.program_id(0), tl.program_id(1)
    part_ptrs = partial_ptr + (split * num_features + weight_row)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    tl.store(part_ptrs, part, mask=is_feature[:, None])
    tl.debug_barrier()  # one thread counts: only after the stores of all threads
    is_last = tl.atomic_add(arrivals_ptr + strip, 1, sem="acq_rel") == SPLITS - 1
    tl.store(arrivals_ptr + strip, 0, mask=is_last)
    return is_last


@triton.jit
@no_type_check
def merged_parts(
    partial_ptr,
    weight_row,
    is_feature,
    num_features,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """[BLOCK_N, BLOCK_M] fp32: the sum of a strip's parts, for the program for which `is_last_part` was true."""
    part_ptrs = partial_ptr + weight_row[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for split in tl.static_range(SPLITS):
        # .cg: from L2, where the other programs' stores are
        next_ptrs = part_ptrs + split * num_features * BLOCK_M
        acc += tl.load(next_ptrs, mask=is_feature[:, None], other=0.0, cache_modifier=".cg")
    return acc


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _skinny_linear_kernel(
    x_ptr,
    weight_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    arrivals_ptr,
    partial_ptr,
    out_ptr,
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
    TILES: tl.constexpr,
    IS_BESIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (strip, split): BLOCK_N output features of all rows; if K is not split, of one of TILES tiles of rows,
    and the tiles of a strip have adjacent program ids."""
    if not LATE:
        start_dependents(PDL)
    feature = tl.program_id(0) // TILES * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(0) % TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    is_feature, is_row = feature < num_features, row < num_rows
    weight_ptrs = tile_ptrs(weight_ptr, feature, weight_stride_row, WIDTH)
    x_ptrs = tile_ptrs(x_ptr, row, x_stride_row, WIDTH)
    scales_ptrs, zeros_ptrs = scale_ptrs(scales_ptr, feature, size, GROUP), scale_ptrs(zeros_ptr, feature, size, GROUP)
    if LATE:
        wait_alone(PDL)
    elif not IS_BESIDE:
        wait_for_inputs(PDL)
    acc = strip_product(
        weight_ptrs, x_ptrs, scales_ptrs, zeros_ptrs, is_feature, is_row, x_ptr, x_stride_row, num_rows, weight_ptr,
        weight_stride_row, scales_ptr, zeros_ptr, tl.program_id(0), num_features, size, False, FORM, GROUP, HAS_ZEROS,
        SPLITS, NUM_STAGES, WARP_TILES, K_WARPS,
    )  # fmt: skip
    if LATE:
        start_dependents(PDL)
    elif IS_BESIDE:
        wait_for_inputs(PDL)
    if SPLITS > 1:
        if not is_last_part(acc, partial_ptr, arrivals_ptr, feature, is_feature, num_features, SPLITS):
            return
        acc = merged_parts(partial_ptr, feature, is_feature, num_features, BLOCK_M, BLOCK_N, SPLITS)
    acc = scaled(acc, scales_ptrs, is_feature, FORM, GROUP)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + row.to(tl.int64)[None, :] * num_features + feature[:, None]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=is_feature[:, None] & is_row[None, :])


@dataclass(frozen=True, slots=True)
class SkinnyLaunch:
    """How the kernels around `skinny_product` are launched. grid: strips and splits. weight: elements, scales, zeros;
    any tensor stands for scales and zeros that do not exist. weight_stride: of a row of elements. partial [splits, N,
    BLOCK_M] fp32: each split's products; if K is not split, any tensor stands for it and for `arrivals`. num_tiles: of
    BLOCK_M rows. constants: the kernel's, num_warps and PDL."""

    grid: tuple[int, int]
    weight: tuple[Tensor, Tensor, Tensor]
    weight_stride: int
    arrivals: Tensor
    partial: Tensor
    block_m: int
    num_tiles: int
    constants: dict[str, Any]


def skinny_launch(x: Tensor, weight: Weight, arrivals: Tensor | None, config: SkinnyConfig | None) -> SkinnyLaunch:
    """x [M, K], M > 0, and weight [N, K], both already checked. config None: the table's."""
    num_rows, num_features = x.shape[0], weight.shape[0]
    if isinstance(weight, QuantizedWeight):
        config = config or (register_config(weight) if takes(x, weight) else quantized_config(num_rows, weight))
        assert not weight.is_int8
        form, elements = _INT4 if weight.is_int4 else _FP8, weight.elements
        tensors = elements, weight.scales, elements if weight.zeros is None else weight.zeros
        group, has_zeros = weight.group_size if weight.scales.shape[1] > 1 else 0, weight.zeros is not None
    else:
        config = config or skinny_config(num_rows, *weight.shape)
        form, elements, tensors, group, has_zeros = _PLAIN, weight, (weight, weight, weight), 0, False
    block_m = FEW_ROWS if num_rows <= FEW_ROWS else MAX_ROWS if num_rows <= MAX_ROWS else _MANY_ROWS_TILE
    if config.warp_tiles:
        block_m = MOST_REGISTER_ROWS
        assert isinstance(weight, QuantizedWeight) and takes(x, weight)
        assert config.block_n * config.k_warps == 16 * config.num_warps * config.warp_tiles
    num_strips, num_tiles = triton.cdiv(num_features, config.block_n), triton.cdiv(num_rows, block_m)
    num_splits = 1 if arrivals is None or num_tiles > 1 else config.num_splits
    partial = x
    if num_splits > 1:
        assert arrivals is not None and arrivals.dtype == torch.int32 and arrivals.shape[0] >= num_strips
        assert num_splits * num_features * block_m < 2**31
        partial = torch.empty((num_splits, num_features, block_m), dtype=torch.float32, device=x.device)
    block_k = config.block_k if form == _INT4 else config.block_k * 2 // x.dtype.itemsize
    constants = {
        "FORM": form,
        "GROUP": group,
        "HAS_ZEROS": has_zeros,
        "BLOCK_M": block_m,
        "BLOCK_N": config.block_n,
        "WIDTH": block_k // 2 if form == _INT4 else block_k,
        "SPLITS": num_splits,
        "NUM_STAGES": config.num_stages,
        "WARP_TILES": config.warp_tiles,
        "K_WARPS": config.k_warps,
        "LATE": config.starts_late,
        "num_warps": config.num_warps,
        "maxnreg": _MAX_REGISTERS,
        **dependent_launch(x.device),
    }
    arrivals = x if arrivals is None else arrivals
    grid, stride = (num_strips, num_splits), elements.stride(0)
    return SkinnyLaunch(grid, tensors, stride, arrivals, partial, block_m, num_tiles, constants)


def check_skinny(x: Tensor, weight: Weight, bias: Tensor | None, most_rows: int = MAX_ROWS) -> None:
    """Checks that the tensors are as the contract says."""
    num_rows, size = x.shape
    num_features = weight.shape[0]
    assert num_rows <= most_rows and (x.stride(-1) == 1 or not num_rows)
    assert weight.shape[1] == size and (isinstance(weight, QuantizedWeight) or weight.is_contiguous())
    assert x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float32)
    assert bias is None or (bias.shape == (num_features,) and bias.dtype == x.dtype and bias.is_contiguous())


def skinny_linear_triton(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    config: SkinnyConfig | None = None,
    *,
    is_beside: bool = False,
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. `config` is for measuring: None takes the table's."""
    check_skinny(x, weight, bias, MAX_QUANTIZED_ROWS if isinstance(weight, QuantizedWeight) else MAX_ROWS)
    num_rows, num_features = x.shape[0], weight.shape[0]
    out = torch.empty((num_rows, num_features), dtype=x.dtype, device=x.device)
    if out.numel():
        launch = skinny_launch(x, weight, arrivals, config)
        num_strips, num_splits = launch.grid
        _skinny_linear_kernel[num_strips * launch.num_tiles, num_splits](
            x,
            *launch.weight,
            x if bias is None else bias,
            launch.arrivals,
            launch.partial,
            out,
            num_rows,
            num_features,
            x.shape[1],
            x.stride(0),
            launch.weight_stride,
            HAS_BIAS=bias is not None,
            TILES=launch.num_tiles,
            IS_BESIDE=is_beside,
            **launch.constants,
        )
    return out


def skinny_linear(
    x: Tensor,
    weight: Weight,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    *,
    is_beside: bool = False,
) -> Tensor:
    """is_beside: the previous kernel is a lora_shrink of x. This one reads none of its output, and runs beside it."""
    if not x.is_cuda:
        return skinny_linear_reference(x, weight, bias, arrivals)
    return skinny_linear_triton(x, weight, bias, arrivals, is_beside=is_beside)
