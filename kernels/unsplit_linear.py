"""Linear projection of many rows by cuBLAS, in the order of summation of kernels/ordered_linear.py.

cuBLAS sums from the first input to the last unless it splits K, so it is told not to. If that order has K in parts,
they are multiplied as one batch and added afterwards.

    unsplit_linear:    x W^T; for a DeferredNorm divided, plus bias; `gated`, silu(first half) * second half
    unsplit_add_norm:  what kernels/linear_add_norm.py computes, for any number of rows

Tensors are those of kernels/ordered_linear.py. Rounding: the product is first rounded to x's dtype, by cuBLAS or after
its fp32 parts are added; it is divided, or added to, in fp32.

NVIDIA does not guarantee that a row gets the same bits from every kernel that cuBLAS may choose, and from ours:
tests/kernels/test_unsplit_linear.py checks it on the GPU. torch's switches that keep cuBLAS from splitting K apply to
the whole process: while they are set, products of other threads may use other cuBLAS kernels too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.gated_linear import is_copied_by_tiles
from kernels.linear_add_norm import DeferredNorm
from kernels.norm_linear import divided_product, gated_product, strips_of, strips_squares
from kernels.optional_triton import tl, triton
from kernels.ordered_tiles import PART_BORDER, STRIP
from kernels.pairwise_sum import pairwise_sum

_BLOCK = 1024  # 4 warps, one 16-byte load per thread
_MAX_SIZE = 32768


@triton.jit
@no_type_check
def _divide_product_kernel(
    product_ptr,  # [M, N], gated [M, 2 * num_out]
    squares_ptr,  # [num_strips, >= M]
    bias_ptr,
    out_ptr,
    num_out,
    num_strips,
    squares_stride,
    size,
    eps,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_S: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (row, piece of the row)."""
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    rows = row + tl.arange(0, 1)
    squares, halves = strips_squares(squares_ptr, squares_stride, rows, rows == row, num_strips, BLOCK_S, HALVES)
    divisor_squares = pairwise_sum(squares + halves)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_feature = feature < num_out
    bias = tl.zeros([BLOCK], tl.float32)
    product_ptrs = product_ptr + row * num_out * (2 if GATED else 1) + feature
    product = tl.load(product_ptrs, mask=is_feature, other=0.0).to(tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)
    out = divided_product(product, divisor_squares, bias, size, eps, HAS_BIAS)
    if GATED:
        up = tl.load(product_ptrs + num_out, mask=is_feature, other=0.0).to(tl.float32)
        if HAS_BIAS:
            bias = tl.load(bias_ptr + num_out + feature, mask=is_feature, other=0.0).to(tl.float32)
        out = gated_product(out, divided_product(up, divisor_squares, bias, size, eps, HAS_BIAS))
    tl.store(out_ptr + row * num_out + feature, out.to(out_ptr.dtype.element_ty), mask=is_feature)


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _add_parts_and_norm_kernel(
    parts_ptr,  # [PARTS, M, N], fp32; if there is only one, already rounded
    bias_ptr,
    residual_ptr,
    norm_weight_ptr,
    total_ptr,
    weighted_ptr,
    squares_ptr,  # [1, M]
    num_rows,
    num_features,
    HAS_BIAS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIP: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: one row."""
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    feature = tl.arange(0, BLOCK)
    is_feature = feature < num_features
    cell = row * num_features + feature
    residual = tl.load(residual_ptr + cell, mask=is_feature, other=0.0).to(tl.float32)
    norm_weight = tl.load(norm_weight_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)
    next_part = num_rows.to(tl.int64) * num_features
    total = tl.load(parts_ptr + cell, mask=is_feature, other=0.0).to(tl.float32)
    for i in tl.static_range(1, PARTS):
        total += tl.load(parts_ptr + i * next_part + cell, mask=is_feature, other=0.0)
    total = total.to(total_ptr.dtype.element_ty).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)
    rounded = (total + residual).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + cell, rounded, mask=is_feature)
    total = rounded.to(tl.float32)
    tl.store(weighted_ptr + cell, (total * norm_weight).to(weighted_ptr.dtype.element_ty), mask=is_feature)
    tl.static_assert(STRIP == 64)
    strips = tl.reshape(total * total, [BLOCK // STRIP, 2, 2, 2, 2, 2, 2])
    for _ in tl.static_range(5):  # added as pairwise_sums does, but without shared memory
        strips = tl.sum(strips, 2)
    squares = pairwise_sum(tl.reshape(tl.sum(strips, 1), [BLOCK // STRIP, 1]))
    tl.store(squares_ptr + row + tl.arange(0, 1), squares)


def takes_parts(weight: Tensor, parts: int) -> bool:
    """Whether `unsplit_add_norm` can multiply by it: parts of K must have the same length."""
    num_features, size = weight.shape
    return (parts == 1 or size % (parts * PART_BORDER) == 0) and num_features <= _MAX_SIZE


def unsplit_linear_triton(
    x: Tensor | DeferredNorm, weight: Tensor, bias: Tensor | None = None, *, gated: bool = False
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter; so for every `_triton` here."""
    _check(x.weighted if isinstance(x, DeferredNorm) else x, weight)
    if not isinstance(x, DeferredNorm):
        assert not gated and bias is None  # how cuBLAS adds a bias is not known
        with _without_split_k(x):
            return F.linear(x, weight)
    weighted, squares, eps = x
    with _without_split_k(weighted):
        product = F.linear(weighted, weight)
    num_rows, num_features = product.shape
    num_out = num_features // 2 if gated else num_features
    out = torch.empty((num_rows, num_out), dtype=product.dtype, device=product.device) if gated else product
    if out.numel():
        _divide_product_kernel[num_rows, triton.cdiv(num_out, _BLOCK)](
            product,
            squares,
            product if bias is None else bias,
            out,
            num_out,
            len(squares),
            squares.stride(0),
            weight.shape[1],
            eps,
            HAS_BIAS=bias is not None,
            GATED=gated,
            **strips_of(len(squares), weight.shape[1]),
            BLOCK=_BLOCK,
            num_warps=4,
            **dependent_launch(product.device),
        )
    return out


def unsplit_product(x: Tensor, weight: Tensor, parts: int) -> Tensor:
    """[M, N] like x: only the rounded product, its parts of K added from first to last."""
    products = _products_of_parts(x, weight, parts)
    if parts == 1:
        return products[0]
    total = products[0]
    for part in products[1:]:
        total = total + part
    return total.to(x.dtype)


def unsplit_add_norm_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    parts: int,
) -> tuple[DeferredNorm, Tensor]:
    num_rows, (num_features, size) = len(x), weight.shape
    _check(x, weight)
    assert size % parts == 0 and num_features <= _MAX_SIZE
    assert residual.shape == (num_rows, num_features) and residual.is_contiguous()
    assert norm_weight.shape == (num_features,) and norm_weight.is_contiguous()
    assert x.dtype == residual.dtype == norm_weight.dtype
    total, weighted = torch.empty_like(residual), torch.empty_like(residual)
    squares = torch.empty((1, num_rows), dtype=torch.float32, device=x.device)
    if num_rows:
        block = triton.next_power_of_2(num_features)
        _add_parts_and_norm_kernel[(num_rows,)](
            _products_of_parts(x, weight, parts),
            x if bias is None else bias,
            residual,
            norm_weight,
            total,
            weighted,
            squares,
            num_rows,
            num_features,
            HAS_BIAS=bias is not None,
            PARTS=parts,
            BLOCK=max(block, STRIP),
            STRIP=STRIP,
            num_warps=min(16, max(1, block // 256)),
            **dependent_launch(x.device),
        )
    return DeferredNorm(weighted, squares, eps), total


def _check(x: Tensor, weight: Tensor) -> None:
    """For other tensors cuBLAS would have to use kernels without WGMMA."""
    assert is_copied_by_tiles(x) and is_copied_by_tiles(weight) and x.stride(1) == 1 and weight.is_contiguous()


def _products_of_parts(x: Tensor, weight: Tensor, parts: int) -> Tensor:
    """[parts, M, N] fp32: the product of each part of K. A single part is already rounded."""
    if parts == 1:
        with _without_split_k(x):
            return F.linear(x, weight)[None]
    of_x = x.unflatten(1, (parts, -1)).transpose(0, 1)
    of_weight = weight.unflatten(1, (parts, -1)).permute(1, 2, 0)
    if x.dtype is torch.float32:
        return torch.bmm(of_x, of_weight)
    with _without_split_k(x):
        return torch.bmm(of_x, of_weight, out_dtype=torch.float32)


@contextmanager
def _without_split_k(x: Tensor) -> Iterator[None]:
    """cuBLASLt can be told not to split K, cuBLAS cannot."""
    if not x.is_cuda:
        yield
        return
    cuda, matmul = torch.backends.cuda, torch.backends.cuda.matmul
    library = cuda.preferred_blas_library()
    allowed = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction_split_k
    cuda.preferred_blas_library("cublaslt")
    matmul.allow_bf16_reduced_precision_reduction = (False, False)
    try:
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction = allowed
        cuda.preferred_blas_library(library)
