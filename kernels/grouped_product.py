"""Products of a mixture of experts: each block of rows times its own expert's weight, all in one launch.

What kernels/experts_gate_up.py and kernels/experts_down.py have in common: the weights' forms, the loop over K, and how
a launch is cut. Rows come in the blocks of kernels/expert_blocks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, no_type_check

import torch
from torch import Tensor

from kernels.fp8_numbers import fp8_numbers
from kernels.mxfp4 import GROUP, dequantize_mxfp4, mxfp4_values
from kernels.optional_triton import tl, triton

PLAIN, FP8, MXFP4 = range(3)
"""Forms of weights, as the kernels know them."""

_MOST_LEFT_ROWS = 32
_MAX_REGISTERS = 255
"""Told to the compiler: see kernels/skinny_linear.py."""


class ExpertWeight(NamedTuple):
    """The weights of all experts (E of them, N output features, K input features), contiguous.

    values: [E, N, K] in the dtype of the rows. Or with scales: float8_e4m3fn, each row with its own, [E, N, 1] fp32;
    or [E, N, K / 2] uint8, MXFP4 (kernels/mxfp4.py), [E, N, K / 32] uint8. bias: None, or [E, N] in the rows' dtype.
    """

    values: Tensor
    scales: Tensor | None = None
    bias: Tensor | None = None

    @property
    def num_inputs(self) -> int:
        return self.values.shape[2] * (2 if self.form == MXFP4 else 1)

    @property
    def form(self) -> int:
        """PLAIN, FP8 or MXFP4."""
        if self.scales is None:
            return PLAIN
        return MXFP4 if self.values.dtype == torch.uint8 else FP8

    def of_expert(self, expert: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """(weight [N, K], bias [N] or None), for the references."""
        bias = None if self.bias is None else self.bias[expert]
        if self.scales is None:
            return self.values[expert], bias
        if self.form == FP8:
            return (self.values[expert].float() * self.scales[expert]).to(dtype), bias
        return dequantize_mxfp4(self.values[expert], self.scales[expert], dtype), bias


@dataclass(frozen=True, slots=True)
class GroupedConfig:
    """block_m: rows of a block. block_n: output features of a program, for gate and up together. block_k: input
    features a stage."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


_MORE = float("inf")
_PLAIN = (
    (8, GroupedConfig(16, 64, 128, num_warps=4, num_stages=4)),
    (20, GroupedConfig(32, 128, 64, num_warps=4, num_stages=4)),
    (96, GroupedConfig(64, 128, 64, num_warps=4, num_stages=3)),
    (_MORE, GroupedConfig(128, 128, 64, num_warps=8, num_stages=3)),
)
_QUANTIZED = (*_PLAIN[:2], (_MORE, _PLAIN[2][1]))
"""Up to so many pairs of an expert on average. While the weights' bytes decide, a block has room for all pairs of
nearly every expert, so that each weight is read once: of Poisson's 8, one in 250 has more than 16; of 20, one in 200
more than 32. For more pairs it is usual tiles of dense products, as far as they compile without spilling. Numbers of
four or eight bits are widened in registers: 128 rows of x beside them would not fit.

Not swept here yet (`python -m loadtest.bench.expert_layers --sweep`); the first row's tile is what others found best on
an H200 for 128 experts of 768 at up to 16 tokens.
"""


def grouped_config(num_pairs: int, num_experts: int, *, is_quantized: bool = False) -> GroupedConfig:
    table = _QUANTIZED if is_quantized else _PLAIN
    return next(config for most, config in table if num_pairs <= most * num_experts)


def tokens_of_each_config(num_experts: int, top_k: int) -> list[int]:
    """The fewest tokens for which `grouped_config` answers otherwise than for fewer: so that each of its kernels can be
    compiled before it is needed."""
    bounds = [int(most) * num_experts for most, _ in _PLAIN[:-1]]
    return [1, *(bound // top_k + 1 for bound in bounds)]


@triton.jit
@no_type_check
def grouped_product(
    x_ptr,
    x_row,  # [BLOCK_M]
    is_row,
    x_stride_row,
    values_ptr,
    scales_ptr,
    expert,
    weight_row,  # [BLOCK_N]: of the expert
    is_feature,
    num_weight_rows,
    size,
    FORM: tl.constexpr,  # 0 plain, 1 fp8, 2 MXFP4
    GROUP_SIZE: tl.constexpr,  # of MXFP4
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    WEIGHT_IS_LEFT: tl.constexpr,
):
    """[BLOCK_M, BLOCK_N] fp32: these rows of x times these rows of the expert's weight. WEIGHT_IS_LEFT: for few rows,
    as the left side of a product wants full tiles."""
    BLOCK_M: tl.constexpr = x_row.shape[0]
    BLOCK_N: tl.constexpr = weight_row.shape[0]
    k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + x_row.to(tl.int64)[:, None] * x_stride_row + k[None, :]
    row = expert.to(tl.int64) * num_weight_rows + weight_row
    acc = tl.zeros([BLOCK_N, BLOCK_M] if WEIGHT_IS_LEFT else [BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, size, BLOCK_K, num_stages=NUM_STAGES):
        is_k = (start + k < size)[None, :]
        x = tl.load(x_ptrs + start, mask=is_row[:, None] & is_k, other=0.0)
        if FORM == 2:
            byte = start // 2 + tl.arange(0, BLOCK_K // 2)
            group = start // GROUP_SIZE + tl.arange(0, BLOCK_K // GROUP_SIZE)
            is_byte = is_feature[:, None] & (byte < size // 2)[None, :]
            is_group = is_feature[:, None] & (group < size // GROUP_SIZE)[None, :]
            numbers = tl.load(values_ptr + row[:, None] * (size // 2) + byte[None, :], mask=is_byte, other=0)
            scales = tl.load(scales_ptr + row[:, None] * (size // GROUP_SIZE) + group[None, :], mask=is_group, other=0)
            weight = mxfp4_values(numbers, scales, GROUP_SIZE).to(x.dtype)
        else:
            weight_ptrs = values_ptr + row[:, None] * size + (start + k)[None, :]
            weight = tl.load(weight_ptrs, mask=is_feature[:, None] & is_k, other=0.0)
            if FORM == 1:
                weight = fp8_numbers(weight, x.dtype)
        if WEIGHT_IS_LEFT:
            acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
        else:
            acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    if WEIGHT_IS_LEFT:
        acc = tl.trans(acc)
    if FORM == 1:
        acc *= tl.load(scales_ptr + row, mask=is_feature, other=0.0)[None, :]
    return acc


def grouped_launch(x: Tensor, weight: ExpertWeight, config: GroupedConfig, block_m: int) -> dict[str, Any]:
    """What the kernels around `grouped_product` are launched with, but for the device's own. Checks the contract."""
    num_experts, _, _ = weight.values.shape
    assert x.stride(1) == 1 and weight.values.is_contiguous() and x.shape[1] == weight.num_inputs
    assert config.block_m == block_m, "blocks are made by the same configuration"
    if weight.scales is None:
        assert weight.values.dtype == x.dtype
    elif weight.form == FP8:
        assert weight.values.dtype == torch.float8_e4m3fn and weight.scales.dtype == torch.float32
        assert weight.scales.is_contiguous() and weight.scales.shape == (*weight.values.shape[:2], 1)
    else:
        assert weight.scales.dtype == torch.uint8 and weight.scales.is_contiguous()
        assert weight.num_inputs % GROUP == 0 and config.block_k % GROUP == 0
    if weight.bias is not None:
        assert weight.bias.shape == (num_experts, weight.values.shape[1]) and weight.bias.is_contiguous()
    return {
        "FORM": weight.form,
        "GROUP_SIZE": GROUP,
        "HAS_BIAS": weight.bias is not None,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        # fp32 is for tests and the tiniest of models: a stage of it is as large with half the features.
        "BLOCK_K": config.block_k if x.itemsize <= 2 else max(GROUP, config.block_k // 2),
        "NUM_STAGES": config.num_stages,
        "WEIGHT_IS_LEFT": config.block_m <= _MOST_LEFT_ROWS,
        "num_warps": config.num_warps,
        "maxnreg": _MAX_REGISTERS,
    }
