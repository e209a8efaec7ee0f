"""Linear projection of few tokens: a decode step's GEMM, which is the reading of its weight and little else.

    out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]

Tensors (M <= 16 rows, N output features, K input features):
    x        [M, K]  bf16 or fp32, last stride 1; rows may be strided
    weight   [N, K]  like x, contiguous, as torch keeps it
    bias     [N]     like x, contiguous; None for none
    returns  [M, N]  like x, contiguous, new

Rounding: fp32 products (never tf32) and sums, rounded once at the end. A row's result does not depend on the other
rows, nor on their number. Offsets are int64. M may be 0. The reference is differentiable.

Every program computes a strip of output features over the whole of K, so nothing has to be merged, and all programs of
a launch are resident at once where N allows it: then memory sees equal streams from all of them to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import tl, triton

MAX_ROWS = 16


@dataclass(frozen=True, slots=True)
class SkinnyConfig:
    """block_n: output features a program, 16 for each warp. block_k: input features a stage (half of it in fp32)."""

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def skinny_config(num_features: int) -> SkinnyConfig:
    """Best of 23 on one H200 (torch 2.11, triton 3.6) at Llama-8B's shapes, TB/s of weights for 1 and 16 rows, beside
    cuBLAS's: qkv 3.40, 3.30 (3.03, 3.14); output 2.85, 2.82 (2.67, 2.66); gate_up 4.16, 4.06 (4.10, 3.79); down 3.85,
    3.79 (3.77, 3.66); head 4.44, 4.34 (4.26, 4.17)."""
    if num_features <= 4608:
        return SkinnyConfig(32, 256, num_warps=2, num_stages=6)
    if num_features <= 12288:
        return SkinnyConfig(64, 256, num_warps=4, num_stages=4)
    if num_features <= 65536:
        return SkinnyConfig(64, 128, num_warps=4, num_stages=4)
    return SkinnyConfig(128, 128, num_warps=4, num_stages=3)


def skinny_linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _skinny_linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_features,
    size,
    x_stride_row,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: BLOCK_N output features of all rows. The weight is the product's left side: it has the full tiles."""
    wait_for_inputs(PDL)
    feature = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    is_feature, is_row = feature < num_features, row < num_rows
    weight_ptrs = weight_ptr + feature.to(tl.int64)[:, None] * size + k[None, :]
    x_ptrs = x_ptr + row.to(tl.int64)[:, None] * x_stride_row + k[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in tl.range(0, size, BLOCK_K, num_stages=NUM_STAGES):
        is_k = (start + k < size)[None, :]
        weight = tl.load(weight_ptrs + start, mask=is_feature[:, None] & is_k, other=0.0)
        x = tl.load(x_ptrs + start, mask=is_row[:, None] & is_k, other=0.0)
        acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)[:, None]
    out_ptrs = out_ptr + row.to(tl.int64)[None, :] * num_features + feature[:, None]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=is_feature[:, None] & is_row[None, :])


def skinny_linear_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, config: SkinnyConfig | None = None
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
        config = config or skinny_config(num_features)
        _skinny_linear_kernel[(triton.cdiv(num_features, config.block_n),)](
            x,
            weight,
            weight if bias is None else bias,
            out,
            num_rows,
            num_features,
            size,
            x.stride(0),
            HAS_BIAS=bias is not None,
            BLOCK_M=MAX_ROWS,
            BLOCK_N=config.block_n,
            BLOCK_K=config.block_k * 2 // x.dtype.itemsize,
            NUM_STAGES=config.num_stages,
            num_warps=config.num_warps,
            **dependent_launch(x.device),
        )
    return out


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return skinny_linear_triton(x, weight, bias) if x.is_cuda else skinny_linear_reference(x, weight, bias)
