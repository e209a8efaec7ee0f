"""Gate and up projection of up to 128 rows with its activation (SwiGLU, Shazeer 2020), in one launch.

    out[m, n] = silu(gate) * up        gate = sum_k x[m, k] * weight[n, k]        up = sum_k x[m, k] * weight[N + n, k]

Tensors (M <= 128 rows, N output features, K input features):
    x        [M, K]      bf16, last stride 1, row stride a multiple of 8; rows may be strided
    weight   [2 * N, K]  like x, contiguous: gate, then up. K a multiple of 8
    returns  [M, N]      like x, contiguous, new

Both start at a multiple of 16 bytes. Rounding: the kernel sums and gates in fp32 and rounds once; the reference rounds
gate, up and silu(gate) too. A row's result does not depend on the other rows or their number. M may be 0. Needs a GPU
with TMA (Hopper and later). The interpreter takes fp32 instead, because it cannot multiply bf16.

With the matrix viewed as [2, N, K], one copy brings a program its features' gates and ups, as rows of one product. Both
of a pair are in the same thread, so the activation costs nothing extra.

On one H200 (torch 2.11, triton 3.6), us for Llama-8B's 28672 x 4096, in brackets cuBLAS and silu_and_mul: 128 rows 65.0
(72.0), 112 rows 66.0 (69.0), 96 rows 75.5 (67.0), because copies of rows that do not exist are slow. With programs of
128 x 256 128 rows take 69, with 8 warps 65.1. 256 rows with tiles of 256 x 128 take 114 (113): loadtest/log/kernels.md.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import TensorDescriptor, tl, triton
from kernels.silu_and_mul import silu_and_mul_reference

MAX_ROWS = 128
_BLOCK_N, _BLOCK_K = 64, 64  # with 4 warps and 3 stages two programs share a multiprocessor
_NUM_WARPS, _NUM_STAGES = 4, 3
_ALIGNMENT_BYTES = 16


def gated_linear_reference(x: Tensor, weight: Tensor) -> Tensor:
    return silu_and_mul_reference(F.linear(x, weight))


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _gated_linear_kernel(
    x_tiles,  # of [M, K], BLOCK_M x BLOCK_K
    weight_tiles,  # of [2, N, K], 2 x BLOCK_N x BLOCK_K
    out_ptr,
    num_rows,
    num_features,
    size,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (strip): BLOCK_N output features of all rows."""
    wait_for_inputs(PDL)
    strip = tl.program_id(0) * BLOCK_N
    acc = tl.zeros([BLOCK_M, 2 * BLOCK_N], tl.float32)
    for start in tl.range(0, size, BLOCK_K, num_stages=NUM_STAGES):
        x = x_tiles.load([0, start])
        weight = weight_tiles.load([0, strip, start]).reshape([2 * BLOCK_N, BLOCK_K])
        acc = tl.dot(x, weight.T, acc, input_precision="ieee")
    gate, up = tl.split(acc.reshape([BLOCK_M, 2, BLOCK_N]).permute(0, 2, 1))
    out = gate / (1 + tl.exp(-gate)) * up
    row, feature = tl.arange(0, BLOCK_M), strip + tl.arange(0, BLOCK_N)
    out_ptrs = out_ptr + row.to(tl.int64)[:, None] * num_features + feature[None, :]
    is_out = (row < num_rows)[:, None] & (feature < num_features)[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=is_out)


def gated_linear_triton(x: Tensor, weight: Tensor) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_rows, size = x.shape
    num_features = weight.shape[0] // 2
    assert num_rows <= MAX_ROWS and weight.shape == (2 * num_features, size) and weight.is_contiguous()
    assert x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float32)
    out = torch.empty((num_rows, num_features), dtype=x.dtype, device=x.device)
    if out.numel():
        assert x.stride(1) == 1 and is_copied_by_tiles(x) and is_copied_by_tiles(weight)
        halves = weight.view(2, num_features, size)
        _gated_linear_kernel[(triton.cdiv(num_features, _BLOCK_N),)](
            TensorDescriptor.from_tensor(x, [MAX_ROWS, _BLOCK_K]),
            TensorDescriptor.from_tensor(halves, [2, _BLOCK_N, _BLOCK_K]),
            out,
            num_rows,
            num_features,
            size,
            BLOCK_M=MAX_ROWS,
            BLOCK_N=_BLOCK_N,
            BLOCK_K=_BLOCK_K,
            NUM_STAGES=_NUM_STAGES,
            num_warps=_NUM_WARPS,
            **dependent_launch(x.device),
        )
    return out


def is_copied_by_tiles(matrix: Tensor) -> bool:
    """Whether TMA can copy a matrix with this start and row stride."""
    row_bytes = matrix.stride(0) * matrix.itemsize
    return row_bytes % _ALIGNMENT_BYTES == 0 and matrix.data_ptr() % _ALIGNMENT_BYTES == 0


def gated_linear(x: Tensor, weight: Tensor) -> Tensor:
    return gated_linear_triton(x, weight) if x.is_cuda else gated_linear_reference(x, weight)
