"""Linear projection with a fixed order of summation: a row's bits do not depend on the other rows or on their number.

    out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]

Tensors (M rows, N output features, K input features):
    x         [M, K]  bf16, last stride 1; rows may be strided, by a multiple of 8. Or a DeferredNorm of such rows
                      (kernels/linear_add_norm.py): the product is divided as in kernels/norm_linear.py
    weight    [N, K]  like x, contiguous, as torch keeps it. N and K are multiples of 8; gated, N of 16
    bias      [N]     like x, contiguous; None for none
    arrivals  [A]     from `new_arrivals` (kernels/skinny_linear.py) for at least N features
    returns   [M, N]  like x, contiguous, new. `gated`, for a DeferredNorm: [M, N / 2], silu(first half) * second half

`ordered_add_norm` adds the residual and leaves the norm's division to the next product: formula, tensors and rounding
are those of kernels/linear_add_norm.py, for any M.

x and weight start at a multiple of 16 bytes. M may be 0. Needs a GPU with TMA (Hopper and later); the interpreter takes
fp32 instead, because it cannot multiply bf16. The references are differentiable and have no fixed order.

The order: K is cut into parts, depending only on the weight's shape. Within a part the tensor cores add 16 products at
a time to an fp32 sum, from the first input to the last. The parts' sums are added from first to last, then the bias;
the result is rounded once. What is then divided, or added to the residual, is rounded before that too, so that cuBLAS
may multiply (kernels/unsplit_linear.py). A norm's squares are added pairwise, first within each 64 features
(kernels/pairwise_sum.py).

Few rows: each program computes one part, and the last one to finish adds the parts (kernels/skinny_linear.py), because
a decode is bound by reading the weight and needs enough programs for that. Many rows: a program computes a tile, part
after part, or cuBLAS multiplies (`is_unsplit` of kernels/ordered_tiles.py). All of these give the same bits, whichever
tile a row is in, whichever side of the product it is on, with WGMMA or with mma.sync. That is a property of the tensor
cores: each element's sum depends only on its own inputs, and instructions take 16 of them.
tests/kernels/test_ordered_linear.py and test_unsplit_linear.py check it on the GPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.gated_linear import is_copied_by_tiles
from kernels.linear_add_norm import DeferredNorm, linear_add_norm_reference, linear_add_norm_triton
from kernels.norm_linear import (
    divided_product,
    gated_product,
    norm_linear_reference,
    norm_linear_triton,
    strips_of,
    strips_squares,
)
from kernels.optional_triton import TensorDescriptor, tl, triton
from kernels.ordered_tiles import PART_BORDER, STRIP, Fused, TileConfig, is_unsplit, num_parts, tile_config
from kernels.pairwise_sum import pairwise_sum, row_strips
from kernels.skinny_config import FEW_ROWS, SkinnyConfig, skinny_config
from kernels.skinny_config import MAX_ROWS as MOST_FEW_ROWS
from kernels.skinny_linear import skinny_linear_triton
from kernels.spare_rows import with_spare_rows
from kernels.unsplit_linear import takes_parts, unsplit_add_norm_triton, unsplit_linear_triton

_TILES_IN_A_GROUP = 8


def ordered_linear_reference(
    x: Tensor | DeferredNorm,
    weight: Tensor,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    *,
    gated: bool = False,
) -> Tensor:
    if isinstance(x, DeferredNorm):
        return norm_linear_reference(x, weight, bias, arrivals, gated)
    assert not gated
    return F.linear(x, weight, bias)


@triton.jit
@no_type_check
def _tile_of_weight(
    weight_tiles, first_feature, start, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATED: tl.constexpr
):
    if GATED:
        return weight_tiles.load([0, first_feature, start]).reshape([BLOCK_N, BLOCK_K])
    else:  # noqa: RET505 - of the two, the compiler is to see one
        return weight_tiles.load([first_feature, start])


@triton.jit
@no_type_check
def _of_part(
    x_tiles,
    weight_tiles,
    first_row,
    first_feature,
    begin,
    end,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATED: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """[BLOCK_M, BLOCK_N] fp32: the tile's products over one part of K."""
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=NUM_STAGES):
        x = x_tiles.load([first_row, start])
        weight = _tile_of_weight(weight_tiles, first_feature, start, BLOCK_N, BLOCK_K, GATED)
        acc = tl.dot(x, weight.T, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["num_rows", "squares_stride"])
@no_type_check
def _ordered_linear_kernel(
    x_tiles,  # of [M, K], BLOCK_M x BLOCK_K
    weight_tiles,  # of [N, K], BLOCK_N x BLOCK_K, or gated of [2, N, K], 2 x BLOCK_N / 2 x BLOCK_K
    bias_ptr,
    squares_ptr,  # [num_strips, >= M]: of the norm that divides the product
    residual_tiles,  # of [M, N], BLOCK_M x BLOCK_N; so are out and weighted
    norm_weight_ptr,
    arrivals_ptr,
    partial_ptr,  # [PARTS, tiles, BLOCK_M, BLOCK_N] fp32: each part's products
    out_tiles,  # gated BLOCK_M x BLOCK_N / 2
    weighted_tiles,
    out_squares_ptr,  # [strips of N, M]; a strip has STRIP features, or BLOCK_N if that is less
    num_rows,
    num_out,  # features of a row of out
    size,
    num_strips,
    squares_stride,
    eps,
    HAS_BIAS: tl.constexpr,
    DIVIDED: tl.constexpr,
    GATED: tl.constexpr,
    ADD_NORM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    BY_PARTS: tl.constexpr,
    PART_BORDER: tl.constexpr,
    STRIP: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (tile), or (tile, part) BY_PARTS. Consecutive tiles share rows or features, so that these are found in
    L2: a group has GROUP tiles of rows, and goes feature tile by feature tile. DIVIDED, GATED, ADD_NORM: what is fused.
    """
    wait_for_inputs(PDL)
    TILE_N: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    num_tiles_m, num_tiles_n = tl.cdiv(num_rows, BLOCK_M), tl.cdiv(num_out, TILE_N)
    group, place = tl.program_id(0) // (GROUP * num_tiles_n), tl.program_id(0) % (GROUP * num_tiles_n)
    group_size = tl.minimum(num_tiles_m - group * GROUP, GROUP)
    # The last tile is moved up so that all its rows exist: with missing rows it would take up to twice as long. So some
    # rows are computed twice, with the same bits.
    first_row = tl.minimum((group * GROUP + place % group_size) * BLOCK_M, tl.maximum(num_rows - BLOCK_M, 0))
    first_feature = place // group_size * TILE_N

    num_borders = tl.cdiv(size, PART_BORDER)
    if PARTS == 1:
        total = _of_part(
            x_tiles, weight_tiles, first_row, first_feature, 0, size, BLOCK_M, BLOCK_N, BLOCK_K, GATED, NUM_STAGES,
        )  # fmt: skip
    elif BY_PARTS:
        tile, part = tl.program_id(0), tl.program_id(1)
        begin = part * num_borders // PARTS * PART_BORDER
        end = tl.minimum((part + 1) * num_borders // PARTS * PART_BORDER, size)
        acc = _of_part(
            x_tiles, weight_tiles, first_row, first_feature, begin, end, BLOCK_M, BLOCK_N, BLOCK_K, GATED, NUM_STAGES,
        )  # fmt: skip
        cell = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        part_ptrs = partial_ptr + tile.to(tl.int64) * (BLOCK_M * BLOCK_N) + cell
        next_part = tl.num_programs(0).to(tl.int64) * (BLOCK_M * BLOCK_N)
        tl.store(part_ptrs + part * next_part, acc)
        tl.debug_barrier()  # one thread counts: only after the stores of all threads
        if tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel") != PARTS - 1:
            return
        tl.store(arrivals_ptr + tile, 0)
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for i in tl.static_range(PARTS):
            total += tl.load(part_ptrs + i * next_part, cache_modifier=".cg")  # from L2: others stored them
    else:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for part in tl.static_range(PARTS):
            begin = part * num_borders // PARTS * PART_BORDER
            end = tl.minimum((part + 1) * num_borders // PARTS * PART_BORDER, size)
            total += _of_part(
                x_tiles, weight_tiles, first_row, first_feature, begin, end, BLOCK_M, BLOCK_N, BLOCK_K, GATED,
                NUM_STAGES,
            )  # fmt: skip

    row = first_row + tl.arange(0, BLOCK_M)
    feature = first_feature + tl.arange(0, BLOCK_N) % TILE_N
    weight_row = feature + tl.arange(0, BLOCK_N) // TILE_N * num_out
    is_row, is_feature = row < num_rows, feature < num_out
    bias = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + weight_row, mask=is_feature, other=0.0).to(tl.float32)
    if DIVIDED or ADD_NORM:
        total = total.to(out_tiles.dtype).to(tl.float32)
    if DIVIDED:
        squares, halves = strips_squares(squares_ptr, squares_stride, row, is_row, num_strips, BLOCK_S, HALVES)
        total = divided_product(total, pairwise_sum(squares + halves)[:, None], bias[None, :], size, eps, HAS_BIAS)
    elif HAS_BIAS:
        total += bias[None, :]
    if GATED:
        halves = tl.permute(tl.reshape(total, [BLOCK_M, 2, TILE_N]), [0, 2, 1])
        gate, up = tl.split(halves)
        total = gated_product(gate, up)
    if ADD_NORM:
        total += residual_tiles.load([first_row, first_feature]).to(tl.float32)
    rounded = total.to(out_tiles.dtype)
    out_tiles.store([first_row, first_feature], rounded)
    if ADD_NORM:
        total = rounded.to(tl.float32)
        norm_weight = tl.load(norm_weight_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)
        weighted_tiles.store([first_row, first_feature], (total * norm_weight[None, :]).to(weighted_tiles.dtype))
        WIDTH: tl.constexpr = BLOCK_N if BLOCK_N < STRIP else STRIP
        strip = first_feature // WIDTH + tl.arange(0, BLOCK_N // WIDTH)
        square_ptrs = out_squares_ptr + strip[None, :] * num_rows + row[:, None]
        is_strip = (strip * WIDTH < num_out)[None, :] & is_row[:, None]
        tl.store(square_ptrs, row_strips(total * total), mask=is_strip)


def takes_weight(weight: Tensor) -> bool:
    """Whether `ordered_linear` can multiply by it in one order."""
    is_hopper = weight.is_cuda and torch.cuda.get_device_capability(weight.device) >= (9, 0)
    is_whole = weight.is_contiguous() and weight.shape[0] % 8 == 0 and is_copied_by_tiles(weight)
    return is_hopper and weight.dtype is torch.bfloat16 and is_whole


def ordered_linear_triton(
    x: Tensor | DeferredNorm,
    weight: Tensor,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    config: TileConfig | None = None,
    parts: int | None = None,
    *,
    gated: bool = False,
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. For measuring: `config`, tiles for any number of rows, and
    `parts`, instead of `num_parts`."""
    rows = x.weighted if isinstance(x, DeferredNorm) else x
    _check(rows, weight, bias)
    assert isinstance(x, DeferredNorm) or not gated
    parts = parts or num_parts(*weight.shape)
    if config is None:
        config = _few_tiles(rows, weight, parts, gated=gated)
    if len(rows) <= MOST_FEW_ROWS and config is None:
        few = _few_config(rows, weight, parts)
        if isinstance(x, DeferredNorm):
            return norm_linear_triton(x, weight, bias, arrivals, gated, few, ordered=True)
        return skinny_linear_triton(x, weight, bias, arrivals, few)
    num_out = weight.shape[0] // 2 if gated else weight.shape[0]
    out = torch.empty((len(rows), num_out), dtype=rows.dtype, device=rows.device)
    config = config or tile_config(len(rows), *weight.shape, gated=gated)
    _launch(x, weight, bias, arrivals, config, parts, out, gated=gated)
    return out


def ordered_add_norm_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    arrivals: Tensor | None = None,
    config: TileConfig | None = None,
    parts: int | None = None,
) -> tuple[DeferredNorm, Tensor]:
    """As `ordered_linear_triton`."""
    _check(x, weight, bias)
    parts = parts or num_parts(*weight.shape)
    if config is None:
        config = _few_tiles(x, weight, parts)
    if len(x) <= MOST_FEW_ROWS and config is None:
        few = _few_config(x, weight, parts)
        return linear_add_norm_triton(x, weight, bias, residual, norm_weight, eps, arrivals, few, ordered=True)
    assert residual.shape == (len(x), weight.shape[0]) and residual.is_contiguous() and is_copied_by_tiles(residual)
    assert norm_weight.shape == weight.shape[:1] and norm_weight.is_contiguous()
    assert x.dtype == residual.dtype == norm_weight.dtype
    total, weighted = torch.empty_like(residual), torch.empty_like(residual)
    config = config or tile_config(len(x), *weight.shape)
    num_strips = -(-weight.shape[0] // min(STRIP, config.block_n))
    squares = torch.empty((num_strips, len(x)), dtype=torch.float32, device=x.device)
    normed = DeferredNorm(weighted, squares, eps)
    _launch(x, weight, bias, arrivals, config, parts, total, add_norm=_AddNorm(residual, norm_weight, normed))
    return normed, total


class _AddNorm(NamedTuple):
    """What is added to the product, the norm's weight, and the result to fill."""

    residual: Tensor
    norm_weight: Tensor
    normed: DeferredNorm


def _launch(
    x: Tensor | DeferredNorm,
    weight: Tensor,
    bias: Tensor | None,
    arrivals: Tensor | None,
    config: TileConfig,
    parts: int,
    out: Tensor,
    *,
    gated: bool = False,
    add_norm: _AddNorm | None = None,
) -> None:
    rows, squares, eps = x if isinstance(x, DeferredNorm) else (x, None, 0.0)
    (num_rows, size), num_out = rows.shape, out.shape[1]
    if num_rows == 0:
        return
    assert is_copied_by_tiles(rows) and is_copied_by_tiles(weight) and num_out % 8 == 0
    tiled_rows = with_spare_rows(rows, config.block_m)
    tile_n = config.block_n // 2 if gated else config.block_n
    num_tiles = triton.cdiv(num_rows, config.block_m) * triton.cdiv(num_out, tile_n)
    by_parts, partial = config.by_parts and parts > 1 and arrivals is not None and len(arrivals) >= num_tiles, rows
    if by_parts:
        shape = parts, num_tiles, config.block_m, config.block_n
        partial = torch.empty(shape, dtype=torch.float32, device=rows.device)
    weight_tile = [2, tile_n, config.block_k] if gated else [config.block_n, config.block_k]
    out_tiles = TensorDescriptor.from_tensor(out, [config.block_m, tile_n])
    residual_tiles, weighted_tiles, norm_weight, out_squares = out_tiles, out_tiles, rows, rows
    if add_norm is not None:
        residual_tiles = TensorDescriptor.from_tensor(add_norm.residual, [config.block_m, tile_n])
        weighted_tiles = TensorDescriptor.from_tensor(add_norm.normed.weighted, [config.block_m, tile_n])
        norm_weight, out_squares = add_norm.norm_weight, add_norm.normed.squares
        eps = add_norm.normed.eps
    num_strips = 1 if squares is None else len(squares)
    _ordered_linear_kernel[num_tiles, parts if by_parts else 1](
        TensorDescriptor.from_tensor(tiled_rows, [config.block_m, config.block_k]),
        TensorDescriptor.from_tensor(weight.view(2, num_out, size) if gated else weight, weight_tile),
        rows if bias is None else bias,
        rows if squares is None else squares,
        residual_tiles,
        norm_weight,
        rows if arrivals is None else arrivals,
        partial,
        out_tiles,
        weighted_tiles,
        out_squares,
        num_rows,
        num_out,
        size,
        num_strips,
        0 if squares is None else squares.stride(0),
        eps,
        HAS_BIAS=bias is not None,
        DIVIDED=squares is not None,
        GATED=gated,
        ADD_NORM=add_norm is not None,
        **strips_of(num_strips, size),
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        PARTS=parts,
        BY_PARTS=by_parts,
        PART_BORDER=PART_BORDER,
        STRIP=STRIP,
        GROUP=_TILES_IN_A_GROUP,
        NUM_STAGES=config.num_stages,
        num_warps=config.num_warps,
        **dependent_launch(rows.device),
    )


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    assert weight.shape[1] == x.shape[1] and weight.is_contiguous() and x.stride(1) == 1
    assert x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float32)
    assert bias is None or (bias.shape == weight.shape[:1] and bias.dtype == x.dtype and bias.is_contiguous())


def _few_tiles(x: Tensor, weight: Tensor, parts: int, *, gated: bool = False) -> TileConfig | None:
    """For more than FEW_ROWS rows and weights for which strips of 64 rows would make too few programs. Narrower weights
    are the product's right operand, because the left one needs 64 rows. Copying them to shared memory thread by thread
    would take 1.6 times as long as with TMA."""
    is_narrow = parts == 1 and 2048 < len(weight) <= 4608 and not gated
    if not is_narrow or not FEW_ROWS < len(x) <= MOST_FEW_ROWS:
        return None
    return TileConfig(64, 32, 128 * 2 // x.itemsize, num_warps=4, num_stages=6)


def _few_config(x: Tensor, weight: Tensor, parts: int) -> SkinnyConfig:
    num_features, size = weight.shape
    if parts == 1 and len(x) <= FEW_ROWS:
        return replace(skinny_config(len(x), num_features, size), num_splits=1)
    # fp32 uses half of block_k.
    few = SkinnyConfig(STRIP if num_features <= 65536 else 128, PART_BORDER * x.itemsize // 2, 4, 4, parts)
    leaves_room = num_features > 65536 if len(x) <= FEW_ROWS else 12288 < num_features <= 65536
    return replace(few, num_stages=3) if leaves_room else few  # so that two programs fit on a multiprocessor


def ordered_linear(
    x: Tensor | DeferredNorm,
    weight: Tensor,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    *,
    gated: bool = False,
    by_cublas: bool = True,
) -> Tensor:
    """by_cublas: cuBLAS may multiply, because it sums in this order on this GPU (kernels/sum_order.py)."""
    if not weight.is_cuda:
        return ordered_linear_reference(x, weight, bias, arrivals, gated=gated)
    is_divided = isinstance(x, DeferredNorm)
    num_rows = len(x.weighted) if isinstance(x, DeferredNorm) else len(x)
    fused = Fused.GATE if gated else Fused.DIVISION if is_divided else Fused.NOTHING
    may_be_unsplit = by_cublas and num_rows > MOST_FEW_ROWS and num_parts(*weight.shape) == 1
    if may_be_unsplit and (is_divided or bias is None) and is_unsplit(num_rows, *weight.shape, fused=fused):
        return unsplit_linear_triton(x, weight, bias, gated=gated)
    return ordered_linear_triton(x, weight, bias, arrivals, gated=gated)


def ordered_add_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    arrivals: Tensor | None = None,
    *,
    by_cublas: bool = True,
) -> tuple[DeferredNorm, Tensor]:
    """by_cublas: as in `ordered_linear`."""
    if not x.is_cuda:
        return linear_add_norm_reference(x, weight, bias, residual, norm_weight, eps, arrivals)
    parts = num_parts(*weight.shape)
    may_be_unsplit = by_cublas and len(x) > MOST_FEW_ROWS and takes_parts(weight, parts)
    if may_be_unsplit and is_unsplit(len(x), *weight.shape, fused=Fused.ADD_NORM):
        return unsplit_add_norm_triton(x, weight, bias, residual, norm_weight, eps, parts)
    return ordered_add_norm_triton(x, weight, bias, residual, norm_weight, eps, arrivals)
