"""Gate and up projections of a mixture of experts with their activation: a grouped product.

    gate, up = weight[e] x[t] + bias[e]        out[pair] = silu(gate) * up        pair = t * k + i, e its expert

With `clamp` (gpt-oss; c = limit, a = alpha) the activation is

    gate' = min(gate, c)        up' = min(max(up, -c), c)        out = gate' * sigmoid(a * gate') * (up' + 1)

Tensors (T tokens with k experts each, E experts, I intermediate size, H hidden size):
    x        [T, H]          bf16, fp16 or fp32, last stride 1; rows may be strided
    weight   [E, 2 * I, H]   an `ExpertWeight` (kernels/grouped_product.py): gates, then ups; if it is interleaved,
                             gates and ups alternate
    blocks from kernels/expert_blocks.py
    returns  [T * k, I]      like x, contiguous, new

Rounding: the kernel sums and gates in fp32 and rounds once; the reference rounds gate and up too. A row's result does
not depend on the other rows. Offsets are int64. T may be 0. The launch depends only on shapes.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.expert_blocks import ExpertBlocks
from kernels.expert_panels import ExpertWeights
from kernels.grouped_product import ExpertWeight, GroupedConfig, grouped_launch, grouped_product, usual_tile
from kernels.mxfp4_product import mxfp4_product
from kernels.mxfp4_units import mxfp4_by_units, takes
from kernels.optional_triton import tl, triton


class Clamp(NamedTuple):
    limit: float
    alpha: float


def gated(gate: Tensor, up: Tensor, clamp: Clamp | None) -> Tensor:
    if clamp is None:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
    return gate * torch.sigmoid(clamp.alpha * gate) * (up + 1)


def experts_gate_up_reference(
    x: Tensor,
    weight: ExpertWeights,
    blocks: ExpertBlocks,
    *,
    is_interleaved: bool = False,
    clamp: Clamp | None = None,
) -> Tensor:
    out = x.new_empty((blocks.num_pairs, weight.num_features // 2))
    for expert, pairs in blocks.by_expert:
        product = weight.product(expert, x.index_select(0, pairs // blocks.top_k))
        gate, up = (product[:, ::2], product[:, 1::2]) if is_interleaved else product.chunk(2, dim=-1)
        out[pairs] = gated(gate, up, clamp)
    return out


@triton.jit
@no_type_check
def _experts_gate_up_kernel(
    x_ptr,
    values_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    pairs_ptr,
    block_experts_ptr,
    out_ptr,
    x_stride_row,
    values_stride_row,
    num_features,
    size,
    limit,
    alpha,
    TOP_K: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    HAS_CLAMP: tl.constexpr,
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
    """Program (block, strip): BLOCK_N / 2 gates and their ups, for a block of pairs. In the product gates and ups
    alternate, whatever their order in memory, so that both of a pair are in one thread."""
    wait_for_inputs(PDL)
    block = tl.program_id(0)
    expert = tl.load(block_experts_ptr + block)
    if expert < 0:
        return
    pair = tl.load(pairs_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    is_row = pair >= 0
    turn = tl.arange(0, BLOCK_N)
    first = tl.program_id(1) * (BLOCK_N // 2)
    feature = first + turn // 2
    weight_row = 2 * feature + turn % 2 if IS_INTERLEAVED else feature + turn % 2 * num_features
    is_feature = feature < num_features
    if WARP_TILES > 0:
        acc = mxfp4_product(
            x_ptr, x_stride_row, pairs_ptr + block * BLOCK_M, values_ptr, values_stride_row, scales_ptr, expert, first,
            num_features, size, TOP_K, True, IS_INTERLEAVED, BLOCK_M, BLOCK_N, BLOCK_K, WARP_TILES, K_WARPS, NUM_STAGES,
        )  # fmt: skip
    else:
        acc = grouped_product(
            x_ptr, pair // TOP_K, is_row, x_stride_row, values_ptr, scales_ptr, zeros_ptr, expert, weight_row,
            is_feature, 2 * num_features, size, FORM, GROUP_SIZE, HAS_ZEROS, BLOCK_K, NUM_STAGES, WEIGHT_IS_LEFT,
        )  # fmt: skip
    if HAS_BIAS:
        bias_ptrs = bias_ptr + expert.to(tl.int64) * 2 * num_features + weight_row
        acc += tl.load(bias_ptrs, mask=is_feature, other=0.0).to(tl.float32)[None, :]
    gate, up = tl.split(acc.reshape([BLOCK_M, BLOCK_N // 2, 2]))
    if HAS_CLAMP:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        out = gate / (1 + tl.exp(-alpha * gate)) * (up + 1)
    else:
        out = gate / (1 + tl.exp(-gate)) * up
    feature = first + tl.arange(0, BLOCK_N // 2)
    out_ptrs = out_ptr + pair.to(tl.int64)[:, None] * num_features + feature[None, :]
    is_out = is_row[:, None] & (feature < num_features)[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=is_out)


def experts_gate_up_triton(
    x: Tensor,
    weight: ExpertWeight,
    blocks: ExpertBlocks,
    config: GroupedConfig,
    *,
    is_interleaved: bool = False,
    clamp: Clamp | None = None,
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. config: the one that the blocks were made with."""
    num_features = weight.values.shape[1] // 2
    num_blocks, block_m = blocks.pairs.shape
    by_units = config.by_units and is_interleaved and takes(x, weight)
    config = usual_tile(block_m) if config.by_units and not by_units else config
    constants = grouped_launch(x, weight, config, block_m)
    out = torch.empty((blocks.num_pairs, num_features), dtype=x.dtype, device=x.device)
    if by_units and blocks.num_pairs:
        mxfp4_by_units(x, weight, blocks, config, out, top_k=blocks.top_k, is_gated=True, clamp=clamp)
    elif blocks.num_pairs:
        _experts_gate_up_kernel[(num_blocks, triton.cdiv(num_features, config.block_n // 2))](
            x,
            weight.values,
            weight.values if weight.scales is None else weight.scales,
            weight.values if weight.zeros is None else weight.zeros,
            x if weight.bias is None else weight.bias,
            blocks.pairs,
            blocks.block_experts,
            out,
            x.stride(0),
            weight.values.stride(1) * weight.values.itemsize,
            num_features,
            weight.num_inputs,
            0.0 if clamp is None else clamp.limit,
            0.0 if clamp is None else clamp.alpha,
            TOP_K=blocks.top_k,
            IS_INTERLEAVED=is_interleaved,
            HAS_CLAMP=clamp is not None,
            **constants,
            **dependent_launch(x.device),
        )
    return out


def experts_gate_up(
    x: Tensor,
    weight: ExpertWeights,
    blocks: ExpertBlocks,
    config: GroupedConfig,
    *,
    is_interleaved: bool = False,
    clamp: Clamp | None = None,
) -> Tensor:
    if not x.is_cuda:
        return experts_gate_up_reference(x, weight, blocks, is_interleaved=is_interleaved, clamp=clamp)
    assert isinstance(weight, ExpertWeight)
    return experts_gate_up_triton(x, weight, blocks, config, is_interleaved=is_interleaved, clamp=clamp)
