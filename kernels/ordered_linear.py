"""Linear projection in one order of summation: a row's bits do not depend on the other rows, nor on their number.

    out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]

Tensors (M rows, N output features, K input features):
    x         [M, K]  bf16, last stride 1; rows may be strided, by a multiple of 8
    weight    [N, K]  like x, contiguous, as torch keeps it. N and K are multiples of 8
    bias      [N]     like x, contiguous; None for none
    arrivals  [A]     of `new_arrivals` (kernels/skinny_linear.py) for N features or more
    returns   [M, N]  like x, contiguous, new

x and weight start at a multiple of 16 bytes. M may be 0. On a GPU that copies tiles by itself (Hopper and later); the
interpreter takes fp32 instead, as it cannot multiply bf16. The reference is differentiable, and promises no order.

The order is: K is cut into parts, by the weight's shape alone. Within a part the matrix unit adds 16 products at a time
to an fp32 sum, from the first input to the last. The parts' sums are added from the first part to the last, then the
bias, and that is rounded once.

Few rows are computed by programs of one part each, of which the last to come adds (kernels/skinny_linear.py): a decode
is the reading of the weight, for which there must be enough of them. Of many rows a program computes a tile, one part
after the other. That both have the same bits, whichever tile a row is in and whichever side of the product it is on, is
a property of the matrix unit: each element's sum depends on its own inputs alone, by instructions that take 16 of them.
tests/kernels/test_ordered_linear.py holds it on the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import TensorDescriptor, tl, triton
from kernels.skinny_linear import FEW_ROWS, SkinnyConfig, skinny_linear_triton
from kernels.skinny_linear import MAX_ROWS as MOST_FEW_ROWS

_PART_BORDER = 128
"""Parts of K begin at multiples of it."""
_TILES_IN_A_GROUP = 8
_MOST_ROWS_BY_PARTS = 256
"""`arrivals` has a place for each tile of 64 x 128 then, but for features that fill no tile."""
_ALIGNMENT_BYTES = 16


@dataclass(frozen=True, slots=True)
class TileConfig:
    """A program's tile: block_m rows, 64 for each warp group of 4 warps at the most, by block_n features. by_parts: it
    computes one part of K, and the last to come adds; else one after the other."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    by_parts: bool = False


def num_parts(num_features: int, size: int) -> int:
    """Of K. So many that few rows, which have a program for each part of 64 features, keep a GPU's 132 multiprocessors
    busy."""
    if size < 2048:
        return 1
    if num_features <= 2048:
        return 4
    return 2 if num_features <= 4608 else 1


def tile_config(num_rows: int, num_features: int, size: int) -> TileConfig:
    """Best of 6 to 9 on one H200 (torch 2.11, triton 3.6) at Llama-8B's shapes, us beside cuBLAS's:

    rows        256           2048          8192
    qkv         28.7 (22.8)   140 (131)     557 (512)
    output      25.5 (18.4)   108 (87)      437 (341)
    gate_up     100 (95)      638 (601)     2676 (2368)
    down        76 (51)       333 (291)     1368 (1176)

    Two programs of 4 warps on a multiprocessor overlap one's end with the other's products. Where K is in parts, 128 x
    128 sums twice take 8 warps. Tiles of 256 rows or features take 10 to 30 % more.
    """
    num_tiles = -(-num_rows // 128) * -(-num_features // 128)
    if num_tiles < 180 and num_parts(num_features, size) > 1 and num_rows <= _MOST_ROWS_BY_PARTS:
        block_m = 64 if num_tiles < 64 else 128
        return TileConfig(block_m, 128, 64, num_warps=4, num_stages=3, by_parts=True)
    if num_tiles < 180:
        return TileConfig(64, 128, 64, num_warps=4, num_stages=4)
    if num_parts(num_features, size) > 1:
        return TileConfig(128, 128, 64, num_warps=8, num_stages=4)
    return TileConfig(128, 128, 64, num_warps=4, num_stages=3)


def ordered_linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, arrivals: Tensor | None = None
) -> Tensor:
    return F.linear(x, weight, bias)


@triton.jit
@no_type_check
def _of_part(
    x_tiles,
    weight_tiles,
    first_row,
    first_feature,
    part,
    size,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    PART_BORDER: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """[BLOCK_M, BLOCK_N] fp32: the tile's products over one part of K."""
    num_borders = tl.cdiv(size, PART_BORDER)
    begin = part * num_borders // PARTS * PART_BORDER
    end = tl.minimum((part + 1) * num_borders // PARTS * PART_BORDER, size)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=NUM_STAGES):
        x = x_tiles.load([first_row, start])
        weight = weight_tiles.load([first_feature, start])
        acc = tl.dot(x, weight.T, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _ordered_linear_kernel(
    x_tiles,  # of [M, K], BLOCK_M x BLOCK_K
    weight_tiles,  # of [N, K], BLOCK_N x BLOCK_K
    bias_ptr,
    arrivals_ptr,
    partial_ptr,  # [PARTS, tiles, BLOCK_M, BLOCK_N] fp32: what each part gives
    out_tiles,  # of [M, N], BLOCK_M x BLOCK_N
    num_rows,
    num_features,
    size,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    BY_PARTS: tl.constexpr,
    PART_BORDER: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (tile), or (tile, part) BY_PARTS. Tiles that follow each other share rows or features, so that they find
    them in L2: those of GROUP tiles of rows, feature by feature."""
    wait_for_inputs(PDL)
    num_tiles_m, num_tiles_n = tl.cdiv(num_rows, BLOCK_M), tl.cdiv(num_features, BLOCK_N)
    group, place = tl.program_id(0) // (GROUP * num_tiles_n), tl.program_id(0) % (GROUP * num_tiles_n)
    group_size = tl.minimum(num_tiles_m - group * GROUP, GROUP)
    first_row = (group * GROUP + place % group_size) * BLOCK_M
    first_feature = place // group_size * BLOCK_N

    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if PARTS == 1:
        for start in tl.range(0, size, BLOCK_K, num_stages=NUM_STAGES):
            x = x_tiles.load([first_row, start])
            weight = weight_tiles.load([first_feature, start])
            total = tl.dot(x, weight.T, total, input_precision="ieee")
    elif BY_PARTS:
        tile, part = tl.program_id(0), tl.program_id(1)
        acc = _of_part(
            x_tiles, weight_tiles, first_row, first_feature, part, size, BLOCK_M, BLOCK_N, BLOCK_K, PARTS, PART_BORDER,
            NUM_STAGES,
        )  # fmt: skip
        cell = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        part_ptrs = partial_ptr + tile.to(tl.int64) * (BLOCK_M * BLOCK_N) + cell
        next_part = tl.num_programs(0).to(tl.int64) * (BLOCK_M * BLOCK_N)
        tl.store(part_ptrs + part * next_part, acc)
        tl.debug_barrier()  # the count is one thread's: it must come after every thread's stores
        if tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel") != PARTS - 1:
            return
        tl.store(arrivals_ptr + tile, 0)
        for i in tl.static_range(PARTS):
            total += tl.load(part_ptrs + i * next_part, cache_modifier=".cg")  # from L2, where the others' stores are
    else:
        for part in tl.static_range(PARTS):
            total += _of_part(
                x_tiles, weight_tiles, first_row, first_feature, part, size, BLOCK_M, BLOCK_N, BLOCK_K, PARTS,
                PART_BORDER, NUM_STAGES,
            )  # fmt: skip
    if HAS_BIAS:
        feature = first_feature + tl.arange(0, BLOCK_N)
        total += tl.load(bias_ptr + feature, mask=feature < num_features, other=0.0).to(tl.float32)[None, :]
    out_tiles.store([first_row, first_feature], total.to(out_tiles.dtype))


def takes_weight(weight: Tensor) -> bool:
    """Whether `ordered_linear` multiplies by it in one order."""
    is_hopper = weight.is_cuda and torch.cuda.get_device_capability(weight.device) >= (9, 0)
    is_whole = weight.is_contiguous() and weight.shape[0] % 8 == 0 and _is_copied_by_tiles(weight)
    return is_hopper and weight.dtype is torch.bfloat16 and is_whole


def _is_copied_by_tiles(matrix: Tensor) -> bool:
    row_bytes = matrix.stride(0) * matrix.itemsize
    return row_bytes % _ALIGNMENT_BYTES == 0 and matrix.data_ptr() % _ALIGNMENT_BYTES == 0


def ordered_linear_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    config: TileConfig | None = None,
    parts: int | None = None,
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. For measuring: `config`, tiles at any number of rows, and
    `parts`, in place of `num_parts`."""
    (num_rows, size), num_features = x.shape, weight.shape[0]
    assert weight.shape[1] == size and weight.is_contiguous() and x.stride(1) == 1
    assert x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float32)
    assert bias is None or (bias.shape == (num_features,) and bias.dtype == x.dtype and bias.is_contiguous())
    parts = parts or num_parts(num_features, size)
    if num_rows <= MOST_FEW_ROWS and config is None:
        # Of fp32 it takes half of block_k.
        few = SkinnyConfig(64 if num_features <= 65536 else 128, _PART_BORDER * x.itemsize // 2, 4, 4, parts)
        if num_rows > FEW_ROWS and 12288 < num_features <= 65536:
            few = replace(few, num_stages=3)
        return skinny_linear_triton(x, weight, bias, arrivals, few)
    config = config or tile_config(num_rows, num_features, size)
    assert _is_copied_by_tiles(x) and _is_copied_by_tiles(weight) and num_features % 8 == 0
    out = torch.empty((num_rows, num_features), dtype=x.dtype, device=x.device)
    num_tiles = triton.cdiv(num_rows, config.block_m) * triton.cdiv(num_features, config.block_n)
    by_parts, partial = config.by_parts and parts > 1 and arrivals is not None and len(arrivals) >= num_tiles, x
    if by_parts:
        shape = parts, num_tiles, config.block_m, config.block_n
        partial = torch.empty(shape, dtype=torch.float32, device=x.device)
    _ordered_linear_kernel[num_tiles, parts if by_parts else 1](
        TensorDescriptor.from_tensor(x, [config.block_m, config.block_k]),
        TensorDescriptor.from_tensor(weight, [config.block_n, config.block_k]),
        x if bias is None else bias,
        x if arrivals is None else arrivals,
        partial,
        TensorDescriptor.from_tensor(out, [config.block_m, config.block_n]),
        num_rows,
        num_features,
        size,
        HAS_BIAS=bias is not None,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        PARTS=parts,
        BY_PARTS=by_parts,
        PART_BORDER=_PART_BORDER,
        GROUP=_TILES_IN_A_GROUP,
        NUM_STAGES=config.num_stages,
        num_warps=config.num_warps,
        **dependent_launch(x.device),
    )
    return out


def ordered_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, arrivals: Tensor | None = None) -> Tensor:
    if not x.is_cuda:
        return ordered_linear_reference(x, weight, bias, arrivals)
    return ordered_linear_triton(x, weight, bias, arrivals)
