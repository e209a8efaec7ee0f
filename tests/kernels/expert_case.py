"""Random experts, and what a mixture of them gives by its formula, pair by pair in fp64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.expert_blocks import ExpertBlocks, expert_blocks, expert_blocks_triton
from kernels.grouped_product import FP8, INT4, MXFP4, PLAIN, ExpertWeight, GroupedConfig
from kernels.mxfp4 import GROUP, dequantize_mxfp4, pack_scales
from kernels.quantized_weight import chunk_of, pack_int4
from tests.kernels.lanes import Lane

SMALL_TILES = GroupedConfig(16, 32, 64, num_warps=4, num_stages=2)
WIDE_TILES = GroupedConfig(64, 64, 64, num_warps=4, num_stages=2)


@dataclass(frozen=True)
class ExpertCase:
    """weight: on the lane's device. exact: [E, N, K] fp64, what it means. bias [E, N] fp64; zeros where there is
    none."""

    weight: ExpertWeight
    exact: Tensor
    bias: Tensor
    experts: Tensor
    blocks: ExpertBlocks


def expert_case(
    lane: Lane,
    num_tokens: int,
    num_features: int,
    size: int,
    config: GroupedConfig,
    *,
    num_experts: int = 6,
    top_k: int = 2,
    has_bias: bool = False,
    form: int = PLAIN,
    num_groups: int = 1,
    has_zeros: bool = False,
) -> ExpertCase:
    dtype = torch.float32 if lane.name == "interpret" else torch.bfloat16
    scales = zeros = None
    by_group = num_experts, num_features, num_groups
    if form == FP8:
        values = (torch.randn(num_experts, num_features, size) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
        scales = (0.5 + torch.rand(by_group)) * 0.01 * size**-0.5
        exact = values.double() * scales.double().repeat_interleave(size // num_groups, 2)
        scales = lane.put(scales)
    elif form == INT4:
        numbers = torch.randint(16, (num_experts * num_features, size), dtype=torch.uint8)
        values = pack_int4(numbers, chunk_of(size // num_groups)).view(num_experts, num_features, size // 2)
        scales = ((0.5 + torch.rand(by_group)) * 0.2 * size**-0.5).half()
        zeros = torch.randint(16, by_group, dtype=torch.uint8) if has_zeros else torch.full(by_group, 8)
        less = numbers.view(*by_group, -1).double() - zeros[..., None]
        exact = (less * scales.double()[..., None]).flatten(2)
        scales, zeros = lane.put(scales), lane.put(zeros) if has_zeros else None
    elif form == MXFP4:
        values = torch.randint(0, 256, (num_experts, num_features, size // 2), dtype=torch.uint8)
        scales = torch.randint(118, 124, (num_experts, num_features, size // GROUP), dtype=torch.uint8)
        exact = dequantize_mxfp4(values, scales, torch.float64)
        scales = lane.put(pack_scales(scales))
    else:
        values = (torch.randn(num_experts, num_features, size) * size**-0.5).to(dtype)
        exact = values.double()
    bias = torch.randn(num_experts, num_features).to(dtype) if has_bias else None
    weight = ExpertWeight(lane.put(values), scales, None if bias is None else lane.put(bias), zeros)
    chosen = [torch.randperm(num_experts - 1)[:top_k] for _ in range(num_tokens)]  # the last expert gets nothing
    experts = lane.put(torch.stack(chosen).int() if chosen else torch.empty(0, top_k, dtype=torch.int32))
    blocks = lane(expert_blocks, expert_blocks_triton)(experts, num_experts, config.block_m)
    exact_bias = torch.zeros(num_experts, num_features).double() if bias is None else bias.double()
    return ExpertCase(weight, exact.to(lane.device), exact_bias.to(lane.device), experts, blocks)


def rows(lane: Lane, num_rows: int, size: int) -> Tensor:
    """In bf16, except where Triton's interpreter would have to multiply it, which it cannot."""
    values = torch.randn(num_rows, size)
    return lane.put(values if lane.name == "interpret" else values.bfloat16())


def products(case: ExpertCase, x: Tensor) -> Tensor:
    """[T * k, N] fp64. x [T * k, K]: a row a pair."""
    experts = case.experts.flatten().long()
    return torch.einsum("pk,pnk->pn", x.double(), case.exact[experts]) + case.bias[experts]
