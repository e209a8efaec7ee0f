"""Products of a mixture of experts: each block of rows times its own expert's weight, all in one launch.

What kernels/experts_gate_up.py and kernels/experts_down.py share: the forms of weights, the loop over K, and how a
launch is divided. Rows come in the blocks of kernels/expert_blocks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.fp8_numbers import fp8_numbers
from kernels.mxfp4 import GROUP, dequantize_mxfp4, mxfp4_halves, unpack_scales
from kernels.mxfp4_product import CHUNK
from kernels.optional_triton import tl, triton
from kernels.quantized_weight import QuantizedWeight, chunk_of
from kernels.skinny_linear import int4_numbers

PLAIN, FP8, MXFP4, INT4 = range(4)
"""Forms of weights, as the kernels know them."""

_ALIGNMENT = 16
_MOST_LEFT_ROWS = 32
_MAX_REGISTERS = 255
"""Passed to the compiler: see kernels/skinny_linear.py."""


class ExpertWeight(NamedTuple):
    """The weights of all experts (E of them, N output features, K input features), contiguous.

    values, scales, by form:
        plain      [E, N, K] in the rows' dtype, no scales
        MXFP4      [E, N, K / 2] uint8 (kernels/mxfp4.py); packed scales [E, C, N] int32, none above 2^65
        fp8, int4  each expert's elements, scales and zeros as in `QuantizedWeight` (kernels/quantized_weight.py):
                   float8_e4m3fn with fp32 scales, or int4
    bias: None, or [E, N] in the rows' dtype.
    """

    values: Tensor
    scales: Tensor | None = None
    bias: Tensor | None = None
    zeros: Tensor | None = None

    @property
    def num_inputs(self) -> int:
        return self.values.shape[2] * (2 if self.form in (MXFP4, INT4) else 1)

    @property
    def form(self) -> int:
        """PLAIN, FP8, MXFP4 or INT4."""
        if self.scales is None:
            return PLAIN
        if self.values.dtype != torch.uint8:
            return FP8
        return MXFP4 if self.scales.dtype == torch.int32 else INT4

    @property
    def group_size(self) -> int:
        """Input features that share a scale; 0 for plain weights, and if a row has only one scale."""
        if self.form == MXFP4:
            return GROUP
        if self.scales is None or self.scales.shape[2] == 1:
            return 0
        return self.num_inputs // self.scales.shape[2]

    @property
    def num_features(self) -> int:
        return self.values.shape[1]

    def product(self, expert: int, rows: Tensor) -> Tensor:
        """rows [T, K] -> [T, N]; for the references."""
        return F.linear(rows, *self.of_expert(expert, rows.dtype))

    def of_expert(self, expert: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """(weight [N, K], bias [N] or None), for the references."""
        bias = None if self.bias is None else self.bias[expert]
        if self.scales is None:
            return self.values[expert], bias
        if self.form != MXFP4:
            zeros = None if self.zeros is None else self.zeros[expert]
            return QuantizedWeight(self.values[expert], self.scales[expert], zeros, dtype).dequantized(), bias
        return dequantize_mxfp4(self.values[expert], unpack_scales(self.scales[expert], self.num_inputs), dtype), bias


@dataclass(frozen=True, slots=True)
class GroupedConfig:
    """block_m: rows per block. block_n: output features per program, gate and up counted together. block_k: input
    features per stage. warp_tiles: how many tiles of 16 weight rows a warp has in registers, while k_warps of the warps
    divide K among them (kernels/mxfp4_product.py); 0: the product goes through shared memory. by_units: MXFP4 uses
    kernels/mxfp4_units.py if that takes it, else the usual tile for this many rows. down: config of downs, for the same
    blocks; None: the same as for gates and ups."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    warp_tiles: int = 0
    k_warps: int = 1
    by_units: bool = False
    down: GroupedConfig | None = None


_MORE = float("inf")
_PLAIN = (
    (8, GroupedConfig(16, 64, 128, num_warps=4, num_stages=4)),
    (20, GroupedConfig(32, 128, 64, num_warps=4, num_stages=4)),
    (96, GroupedConfig(64, 128, 64, num_warps=4, num_stages=3)),
    (_MORE, GroupedConfig(128, 128, 64, num_warps=8, num_stages=3)),
)
_QUANTIZED = (*_PLAIN[:2], (_MORE, _PLAIN[2][1]))
_MXFP4 = (
    (
        0.5,
        GroupedConfig(
            8,
            32,
            256,
            num_warps=2,
            num_stages=2,
            warp_tiles=2,
            k_warps=2,
            down=GroupedConfig(8, 32, 256, num_warps=4, num_stages=2, warp_tiles=2, k_warps=4),
        ),
    ),
    (4, GroupedConfig(8, 32, 256, num_warps=4, num_stages=1, warp_tiles=1, k_warps=2)),
    (10, GroupedConfig(16, 128, 128, num_warps=4, num_stages=3, by_units=True)),
    (20, GroupedConfig(32, 128, 128, num_warps=4, num_stages=3, by_units=True)),
    (
        48,
        GroupedConfig(
            64,
            128,
            128,
            num_warps=8,
            num_stages=3,
            by_units=True,
            down=GroupedConfig(64, 128, 128, num_warps=4, num_stages=3, by_units=True),
        ),
    ),
    (_MORE, _PLAIN[2][1]),
)
"""(pairs per expert on average, up to which it is used; config). While reading weights takes the time, a block has room
for all pairs of nearly every expert, so that each weight is read once: with 8 pairs on average, one expert in 250 has
more than 16 (Poisson); with 20, one in 200 has more than 32. For more pairs these are the usual tiles of dense
products, as far as they compile without spills. 4-bit and 8-bit weights are widened in registers, and 128 rows of x
would not fit beside them.

Plain weights have not been swept here yet (`python -m loadtest.bench.expert_layers --sweep`); the first row's tile is
what others found best on an H200 for 128 experts of 768 at up to 16 tokens. MXFP4: the best of 13 to 130 configs on an
H200 for gpt-oss-20b, us of gate_up and down, in brackets _QUANTIZED's: 1 row 15.4, 10.7 (39.1, 32.8), 16 rows 92.8,
55.7 (170, 98.6). 64 rows: by units 106, 62.7 (in blocks of 32: 118, 67.7), in registers 129, 78, _QUANTIZED's 200, 110.
256 rows: by units 165, 91.5 (in blocks of 32: 167, 96.8), in registers 266, 164. 1,024 rows: _QUANTIZED's 684, 379;
units were not swept.
"""

_Table = tuple[tuple[float, GroupedConfig], ...]


def usual_tile(block_m: int) -> GroupedConfig:
    """For MXFP4 in blocks of 16, 32 or 64 rows that kernels/mxfp4_units.py does not take."""
    if block_m <= 32:
        return GroupedConfig(block_m, 128, 128, num_warps=4, num_stages=1, warp_tiles=2)
    return _PLAIN[2][1]


def grouped_config(
    num_pairs: int, num_experts: int, form: int = PLAIN, dtype: torch.dtype = torch.bfloat16
) -> GroupedConfig:
    """form: of the weights. dtype: of the rows."""
    return next(config for most, config in _table(form, dtype) if num_pairs <= most * num_experts)


def tokens_of_each_config(
    num_experts: int, top_k: int, form: int = PLAIN, dtype: torch.dtype = torch.bfloat16
) -> list[int]:
    """Numbers of tokens that together use every config of `grouped_config` (the fewest tokens of each), so that each
    kernel can be compiled ahead."""
    table = _table(form, dtype)
    bounds = [int(most * num_experts) // top_k + 1 for most, _ in table[:-1]]
    return sorted({1, *bounds})


def _table(form: int, dtype: torch.dtype) -> _Table:
    if form == PLAIN:
        return _PLAIN
    return _MXFP4 if form == MXFP4 and dtype == torch.bfloat16 else _QUANTIZED


@triton.jit
@no_type_check
def grouped_product(
    x_ptr,
    x_row,  # [BLOCK_M]
    is_row,
    x_stride_row,
    values_ptr,
    scales_ptr,
    zeros_ptr,
    expert,
    weight_row,  # [BLOCK_N]: of the expert
    is_feature,
    num_weight_rows,
    size,
    FORM: tl.constexpr,  # 0 plain, 1 fp8, 2 MXFP4, 3 int4
    GROUP_SIZE: tl.constexpr,  # input features that share a scale; 0: all, or no scale
    HAS_ZEROS: tl.constexpr,  # of int4
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    WEIGHT_IS_LEFT: tl.constexpr,
):
    """[BLOCK_M, BLOCK_N] fp32: these rows of x times these rows of the expert's weight. WEIGHT_IS_LEFT: for few rows,
    because the left operand of an MMA needs full tiles."""
    BLOCK_M: tl.constexpr = x_row.shape[0]
    BLOCK_N: tl.constexpr = weight_row.shape[0]
    k = tl.arange(0, BLOCK_K)
    x_row_ptrs = x_ptr + x_row.to(tl.int64)[:, None] * x_stride_row
    row = expert.to(tl.int64) * num_weight_rows + weight_row
    acc = tl.zeros([BLOCK_N, BLOCK_M] if WEIGHT_IS_LEFT else [BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, size, BLOCK_K, num_stages=NUM_STAGES):
        is_k = (start + k < size)[None, :]
        if FORM == 3:
            byte = start // 2 + tl.arange(0, BLOCK_K // 2)
            numbers = tl.load(
                values_ptr + row[:, None] * (size // 2) + byte[None, :], mask=is_feature[:, None], other=0
            )
            zeros = tl.full([BLOCK_N], 8.0, tl.float32)
            if HAS_ZEROS:
                zeros_ptrs = zeros_ptr + (row * (size // GROUP_SIZE) + start // GROUP_SIZE if GROUP_SIZE > 0 else row)
                zeros = tl.load(zeros_ptrs, mask=is_feature, other=0).to(tl.float32)
            low_ptrs = x_row_ptrs + (start + tl.arange(0, BLOCK_K // 2))[None, :]
            low_x = tl.load(low_ptrs, mask=is_row[:, None], other=0.0)
            x = tl.load(low_ptrs + BLOCK_K // 2, mask=is_row[:, None], other=0.0)
            low, weight = int4_numbers(numbers, zeros, x.dtype)
        elif FORM == 2:
            half = tl.arange(0, BLOCK_K // 2)
            byte = start // 2 + half
            is_byte = (byte < size // 2)[None, :]
            numbers_ptrs = values_ptr + row[:, None] * (size // 2) + byte[None, :]
            numbers = tl.load(numbers_ptrs, mask=is_feature[:, None] & is_byte, other=0)
            word_row = expert.to(tl.int64) * tl.cdiv(size, 128) + start // 128
            words = tl.load(scales_ptr + word_row * num_weight_rows + weight_row, mask=is_feature, other=0)
            shift = (start % 128 // GROUP_SIZE + tl.arange(0, BLOCK_K // GROUP_SIZE)) * 8
            scales = words[:, None] >> shift[None, :] & 255
            low_k = start + half // (GROUP_SIZE // 2) * GROUP_SIZE + half % (GROUP_SIZE // 2)
            low_ptrs = x_row_ptrs + low_k[None, :]
            low_x = tl.load(low_ptrs, mask=is_row[:, None] & is_byte, other=0.0)
            x = tl.load(low_ptrs + GROUP_SIZE // 2, mask=is_row[:, None] & is_byte, other=0.0)
            low, weight = mxfp4_halves(numbers, scales, x.dtype)
        else:
            x = tl.load(x_row_ptrs + (start + k)[None, :], mask=is_row[:, None] & is_k, other=0.0)
            weight_ptrs = values_ptr + row[:, None] * size + (start + k)[None, :]
            weight = tl.load(weight_ptrs, mask=is_feature[:, None] & is_k, other=0.0)
            if FORM == 1:
                weight = fp8_numbers(weight, x.dtype)
        is_by_group: tl.constexpr = GROUP_SIZE > 0 and FORM != 2
        part = tl.zeros(acc.shape, tl.float32) if is_by_group else acc
        if FORM >= 2:
            part = _product(low, low_x, part, WEIGHT_IS_LEFT)
        part = _product(weight, x, part, WEIGHT_IS_LEFT)
        if is_by_group:
            scales_ptrs = scales_ptr + row * (size // GROUP_SIZE) + start // GROUP_SIZE
            scales = tl.load(scales_ptrs, mask=is_feature, other=0.0).to(tl.float32)
            acc += part * (scales[:, None] if WEIGHT_IS_LEFT else scales[None, :])
        else:
            acc = part
    if WEIGHT_IS_LEFT:
        acc = tl.trans(acc)
    if (FORM == 1 or FORM == 3) and GROUP_SIZE == 0:
        acc *= tl.load(scales_ptr + row, mask=is_feature, other=0.0).to(tl.float32)[None, :]
    return acc


@triton.jit
@no_type_check
def _product(weight, x, acc, WEIGHT_IS_LEFT: tl.constexpr):
    if WEIGHT_IS_LEFT:
        acc = tl.dot(weight, tl.trans(x), acc, input_precision="ieee")
    else:
        acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
    return acc


def grouped_launch(x: Tensor, weight: ExpertWeight, config: GroupedConfig, block_m: int) -> dict[str, Any]:
    """The common launch arguments of the kernels around `grouped_product`, except the device's. Checks the contract."""
    num_experts, _, _ = weight.values.shape
    assert x.stride(1) == 1 and weight.values.is_contiguous() and x.shape[1] == weight.num_inputs
    assert config.block_m == block_m, "blocks are made by the same configuration"
    if weight.scales is None:
        assert weight.values.dtype == x.dtype
    elif weight.form in (FP8, INT4):
        assert weight.form == INT4 or weight.values.dtype == torch.float8_e4m3fn
        assert weight.scales.is_contiguous() and weight.scales.shape[:2] == weight.values.shape[:2]
        assert weight.num_inputs % weight.scales.shape[2] == 0
        assert weight.zeros is None or (weight.zeros.shape == weight.scales.shape and weight.zeros.is_contiguous())
    else:
        num_words = -(-weight.num_inputs // CHUNK)
        assert weight.scales.is_contiguous() and weight.scales.shape[1:] == (num_words, weight.values.shape[1])
        assert weight.num_inputs % GROUP == 0 and config.block_k % GROUP == 0
    if config.warp_tiles:
        assert weight.form == MXFP4 and x.dtype == torch.bfloat16 and config.block_k % CHUNK == 0
        assert config.block_n * config.k_warps == 16 * config.num_warps * config.warp_tiles
        assert not (x.data_ptr() % _ALIGNMENT or x.stride(0) % _ALIGNMENT or weight.values.data_ptr() % _ALIGNMENT)
    else:
        assert weight.form != MXFP4 or config.block_k <= CHUNK
    if weight.bias is not None:
        assert weight.bias.shape == (num_experts, weight.values.shape[1]) and weight.bias.is_contiguous()
    return {
        "FORM": weight.form,
        "GROUP_SIZE": weight.group_size,
        "HAS_ZEROS": weight.zeros is not None,
        "HAS_BIAS": weight.bias is not None,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": _block_k(x, weight, config),
        "NUM_STAGES": config.num_stages,
        "WEIGHT_IS_LEFT": config.block_m <= _MOST_LEFT_ROWS,
        "WARP_TILES": config.warp_tiles,
        "K_WARPS": config.k_warps,
        "num_warps": config.num_warps,
        "maxnreg": _MAX_REGISTERS,
    }


def _block_k(x: Tensor, weight: ExpertWeight, config: GroupedConfig) -> int:
    """A stage has at most one group's input features; with int4, exactly as many as are packed together."""
    if weight.form == INT4:
        return chunk_of(weight.group_size or weight.num_inputs)
    # fp32 is only for tests and tiny models: with half the features a stage has the same size.
    block_k = config.block_k if x.itemsize <= 2 else max(GROUP, config.block_k // 2)
    return min(block_k, weight.group_size) if weight.form == FP8 and weight.group_size else block_k
