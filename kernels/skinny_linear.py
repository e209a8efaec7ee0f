"""Linear projection of few tokens: a decode step's GEMM, which is the reading of its weight and little else.

    out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]

Tensors (M <= 64 rows, N output features, K input features):
    x         [M, K]  bf16 or fp32, last stride 1; rows may be strided
    weight    [N, K]  like x, contiguous, as torch keeps it
    bias      [N]     like x, contiguous; None for none
    arrivals  [A]     of `new_arrivals` for N features or more, for the kernel: how many parts of a strip are done. Zero
                      between launches, so for one stream at a time. None: more than 16 rows take longer
    returns   [M, N]  like x, contiguous, new

Rounding: fp32 products (never tf32) and sums, rounded once at the end. A row's result does not depend on the other
rows, nor on their number up to 16, nor from 17 to 64. Offsets are int64. M may be 0. The reference is differentiable.

A program computes a strip of output features. Up to 16 rows it takes the whole of K, so nothing has to be merged, and
all programs of a launch are resident at once where N allows it: then memory sees equal streams from all of them to the
end. With more rows x is worth reading seldom, so strips are wide, and where there are few of them K is split; whoever
finishes a strip's last part merges them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import tl, triton

FEW_ROWS, MAX_ROWS = 16, 64
_MIN_BLOCK_N = 32


@dataclass(frozen=True, slots=True)
class SkinnyConfig:
    """block_n: output features a program, 16 for each warp. block_k: input features a stage (half of it in fp32).
    num_splits: of K."""

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    num_splits: int = 1


def skinny_config(num_rows: int, num_features: int) -> SkinnyConfig:
    """Best of 23 on one H200 (torch 2.11, triton 3.6) at Llama-8B's shapes, TB/s of weights for 1 and 16 rows, beside
    cuBLAS's: qkv 3.40, 3.30 (3.03, 3.14); output 2.85, 2.82 (2.67, 2.66); gate_up 4.16, 4.06 (4.10, 3.79); down 3.85,
    3.79 (3.77, 3.66); head 4.44, 4.34 (4.26, 4.17).

    For 64 rows the best of 11, us beside cuBLAS's: qkv 17.0 (16.2), output 11.8 (11.9), gate_up 62.0 (62.9), down 33.1
    (36.3), head 263 (283). Strips of 128 take 66 for gate_up, of 32 take 26, 26 and 83 for qkv, output and down; more
    splits cost 3 to 8 us each time.
    """
    if num_rows > FEW_ROWS:
        if num_features <= 4608:
            return SkinnyConfig(64, 128, num_warps=4, num_stages=4, num_splits=2)
        if num_features <= 12288:
            return SkinnyConfig(64, 128, num_warps=4, num_stages=4)
        if num_features <= 65536:
            return SkinnyConfig(64, 128, num_warps=4, num_stages=3)
        return SkinnyConfig(128, 64, num_warps=4, num_stages=4)
    if num_features <= 4608:
        return SkinnyConfig(32, 256, num_warps=2, num_stages=6)
    if num_features <= 12288:
        return SkinnyConfig(64, 256, num_warps=4, num_stages=4)
    if num_features <= 65536:
        return SkinnyConfig(64, 128, num_warps=4, num_stages=4)
    return SkinnyConfig(128, 128, num_warps=4, num_stages=3)


def new_arrivals(num_features: int, device: torch.device) -> Tensor:
    return torch.zeros(-(-num_features // _MIN_BLOCK_N), dtype=torch.int32, device=device)


def skinny_linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, arrivals: Tensor | None = None
) -> Tensor:
    return F.linear(x, weight, bias)


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _skinny_linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    arrivals_ptr,
    partial_ptr,  # [SPLITS, N, BLOCK_M] fp32: what each split gives
    out_ptr,
    num_rows,
    num_features,
    size,
    x_stride_row,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (strip, split): BLOCK_N output features of all rows. The weight is the product's left side: it has the
    full tiles."""
    wait_for_inputs(PDL)
    strip = tl.program_id(0)
    split = tl.program_id(1)
    feature = strip * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    is_feature, is_row = feature < num_features, row < num_rows
    weight_row_ptrs = weight_ptr + feature.to(tl.int64)[:, None] * size
    begin, end = 0, size
    if SPLITS > 1:
        num_tiles = tl.cdiv(size, BLOCK_K)
        begin = split * num_tiles // SPLITS * BLOCK_K
        end = tl.minimum((split + 1) * num_tiles // SPLITS * BLOCK_K, size)
    weight_ptrs = weight_row_ptrs + k[None, :]
    x_ptrs = x_ptr + row.to(tl.int64)[:, None] * x_stride_row + k[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in tl.range(begin, end, BLOCK_K, num_stages=NUM_STAGES):
        is_k = (start + k < size)[None, :]
        weight = tl.load(weight_ptrs + start, mask=is_feature[:, None] & is_k, other=0.0)
        x = tl.load(x_ptrs + start, mask=is_row[:, None] & is_k, other=0.0)
        acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")

    if SPLITS > 1:
        own_ptrs = partial_ptr + feature[:, None] * BLOCK_M + row[None, :]
        next_split = num_features * BLOCK_M
        tl.store(own_ptrs + split * next_split, acc, mask=is_feature[:, None])
        tl.debug_barrier()  # the count is one thread's: it must come after every thread's stores
        if tl.atomic_add(arrivals_ptr + strip, 1, sem="acq_rel") != SPLITS - 1:
            return
        tl.store(arrivals_ptr + strip, 0)
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for part in tl.static_range(SPLITS):
            # .cg: from L2, where the other programs' stores are
            acc += tl.load(own_ptrs + part * next_split, mask=is_feature[:, None], other=0.0, cache_modifier=".cg")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + row.to(tl.int64)[None, :] * num_features + feature[:, None]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=is_feature[:, None] & is_row[None, :])


def skinny_linear_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    config: SkinnyConfig | None = None,
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. `config` is for measuring: None takes the table's."""
    num_rows, size = x.shape
    num_features = weight.shape[0]
    assert (
        num_rows <= MAX_ROWS
        and (x.stride(-1) == 1 or not num_rows)
        and weight.is_contiguous()
        and weight.shape[1] == size
    )
    assert x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float32)
    assert bias is None or (bias.shape == (num_features,) and bias.dtype == x.dtype and bias.is_contiguous())
    out = torch.empty((num_rows, num_features), dtype=x.dtype, device=x.device)
    if out.numel():
        config = config or skinny_config(num_rows, num_features)
        block_m = FEW_ROWS if num_rows <= FEW_ROWS else MAX_ROWS
        num_strips = triton.cdiv(num_features, config.block_n)
        num_splits = 1 if arrivals is None else config.num_splits
        partial = out
        if num_splits > 1:
            assert arrivals is not None and arrivals.dtype == torch.int32 and arrivals.shape[0] >= num_strips
            assert num_splits * num_features * block_m < 2**31
            partial = torch.empty((num_splits, num_features, block_m), dtype=torch.float32, device=x.device)
        _skinny_linear_kernel[(num_strips, num_splits)](
            x,
            weight,
            weight if bias is None else bias,
            out if arrivals is None else arrivals,
            partial,
            out,
            num_rows,
            num_features,
            size,
            x.stride(0),
            HAS_BIAS=bias is not None,
            BLOCK_M=block_m,
            BLOCK_N=config.block_n,
            BLOCK_K=config.block_k * 2 // x.dtype.itemsize,
            SPLITS=num_splits,
            NUM_STAGES=config.num_stages,
            num_warps=config.num_warps,
            **dependent_launch(x.device),
        )
    return out


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, arrivals: Tensor | None = None) -> Tensor:
    linear = skinny_linear_triton if x.is_cuda else skinny_linear_reference
    return linear(x, weight, bias, arrivals)
