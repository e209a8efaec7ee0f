"""Down projections of a mixture of experts, weighted and summed: a grouped product, then a sum over a token's pairs.

    out[t] = sum over i of routing[t, i] * (weight[e] x[t * k + i] + bias[e])        e the i-th expert of token t

Tensors (T tokens with k experts each, E experts, I intermediate size, H hidden size):
    x        [T * k, I]  bf16, fp16 or fp32, last stride 1: what kernels/experts_gate_up.py returns
    weight   [E, H, I]   an `ExpertWeight` (kernels/grouped_product.py)
    blocks from kernels/expert_blocks.py
    routing  [T, k]      fp32, contiguous: from kernels/route_to_experts.py
    returns  [T, H]      like x, contiguous, new

Rounding: each product is summed and weighted in fp32 and rounded to x's dtype. A token's products are then summed in
fp32, in a fixed order, and rounded. The reference also rounds before it weights. A row's result does not depend on the
other rows. Offsets are int64. T may be 0. The launches depend only on shapes.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.expert_blocks import ExpertBlocks
from kernels.expert_panels import ExpertWeights
from kernels.grouped_product import ExpertWeight, GroupedConfig, grouped_launch, grouped_product, usual_tile
from kernels.mxfp4_product import mxfp4_product
from kernels.mxfp4_units import mxfp4_by_units, takes
from kernels.optional_triton import tl, triton

_BLOCK_H = 1024


def experts_down_reference(x: Tensor, weight: ExpertWeights, blocks: ExpertBlocks, routing: Tensor) -> Tensor:
    flat, products = routing.flatten(), x.new_empty((blocks.num_pairs, weight.num_features))
    for expert, pairs in blocks.by_expert:
        product = weight.product(expert, x.index_select(0, pairs))
        products[pairs] = (product * flat[pairs, None]).to(x.dtype)
    return products.view(-1, blocks.top_k, products.shape[1]).sum(1)


@triton.jit
@no_type_check
def _experts_down_kernel(
    x_ptr,
    values_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    pairs_ptr,
    block_experts_ptr,
    routing_ptr,
    out_ptr,  # [T * k, H]
    x_stride_row,
    values_stride_row,
    num_features,
    size,
    FORM: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    WEIGHT_IS_LEFT: tl.constexpr,
    WARP_TILES: tl.constexpr,
    K_WARPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (block, strip): BLOCK_N output features for a block of pairs."""
    wait_for_inputs(PDL)
    block = tl.program_id(0)
    expert = tl.load(block_experts_ptr + block)
    if expert < 0:
        return
    pair = tl.load(pairs_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    is_row = pair >= 0
    feature = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_feature = feature < num_features
    if WARP_TILES > 0:
        acc = mxfp4_product(
            x_ptr, x_stride_row, pairs_ptr + block * BLOCK_M, values_ptr, values_stride_row, scales_ptr, expert,
            tl.program_id(1) * BLOCK_N, num_features, size, 1, False, False, BLOCK_M, BLOCK_N, BLOCK_K, WARP_TILES,
            K_WARPS, NUM_STAGES,
        )  # fmt: skip
    else:
        acc = grouped_product(
            x_ptr, pair, is_row, x_stride_row, values_ptr, scales_ptr, zeros_ptr, expert, feature, is_feature,
            num_features, size, FORM, GROUP_SIZE, HAS_ZEROS, BLOCK_K, NUM_STAGES, WEIGHT_IS_LEFT,
        )  # fmt: skip
    if HAS_BIAS:
        bias_ptrs = bias_ptr + expert.to(tl.int64) * num_features + feature
        acc += tl.load(bias_ptrs, mask=is_feature, other=0.0).to(tl.float32)[None, :]
    acc *= tl.load(routing_ptr + pair, mask=is_row, other=0.0)[:, None]
    out_ptrs = out_ptr + pair.to(tl.int64)[:, None] * num_features + feature[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_feature[None, :])


@triton.jit
@no_type_check
def _sum_pairs_kernel(products_ptr, out_ptr, size, TOP_K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Program (token, piece of the row)."""
    wait_for_inputs(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < size
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(TOP_K):
        product_ptrs = products_ptr + (token * TOP_K + i) * size + column
        total += tl.load(product_ptrs, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * size + column, total.to(out_ptr.dtype.element_ty), mask=is_column)


def experts_down_triton(
    x: Tensor, weight: ExpertWeight, blocks: ExpertBlocks, routing: Tensor, config: GroupedConfig
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. config: the one that the blocks were made with."""
    num_features = weight.values.shape[1]
    num_blocks, block_m = blocks.pairs.shape
    num_tokens = blocks.num_pairs // blocks.top_k
    config = config.down or config
    by_units = config.by_units and takes(x, weight)
    config = usual_tile(block_m) if config.by_units and not by_units else config
    constants = grouped_launch(x, weight, config, block_m)
    assert routing.shape == (num_tokens, blocks.top_k) and routing.is_contiguous() and routing.dtype == torch.float32
    out = torch.empty((num_tokens, num_features), dtype=x.dtype, device=x.device)
    if num_tokens:
        products = torch.empty((blocks.num_pairs, num_features), dtype=x.dtype, device=x.device)
        if by_units:
            mxfp4_by_units(x, weight, blocks, config, products, routing=routing)
        else:
            _experts_down_kernel[(num_blocks, triton.cdiv(num_features, config.block_n))](
                x,
                weight.values,
                weight.values if weight.scales is None else weight.scales,
                weight.values if weight.zeros is None else weight.zeros,
                x if weight.bias is None else weight.bias,
                blocks.pairs,
                blocks.block_experts,
                routing,
                products,
                x.stride(0),
                weight.values.stride(1) * weight.values.itemsize,
                num_features,
                weight.num_inputs,
                **constants,
                **dependent_launch(x.device),
            )
        _sum_pairs_kernel[(num_tokens, triton.cdiv(num_features, _BLOCK_H))](
            products, out, num_features, TOP_K=blocks.top_k, BLOCK=_BLOCK_H, num_warps=4, **dependent_launch(x.device)
        )
    return out


def experts_down(
    x: Tensor, weight: ExpertWeights, blocks: ExpertBlocks, routing: Tensor, config: GroupedConfig
) -> Tensor:
    if not x.is_cuda:
        return experts_down_reference(x, weight, blocks, routing)
    assert isinstance(weight, ExpertWeight)
    return experts_down_triton(x, weight, blocks, routing, config)
