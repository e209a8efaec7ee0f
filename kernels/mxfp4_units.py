"""Products of a mixture of experts with MXFP4 weights, for blocks of at least 16 rows: weights are dequantized in the
registers that the tensor cores read, while these multiply. Twin of the kernels of kernels/experts_gate_up.py and
experts_down.py, with the same contracts; kernels/int4_linear.py explains the method.

A group's 16 low halves, numbers 0 to 15, are one MMA step, its high halves the next (kernels/mxfp4.py). Masks and an
integer product move two elements of a word at a time to bf16's bit positions, 2^126 times too small; the scale, 2^62
times too large, makes up for a part: as in kernels/mxfp4_product.py, and equally exact.

Rows of x are copied by their pairs, 16 bytes at a time; the weight comes by TMA copies. A gate and its up are adjacent
rows of the weight.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch
from kernels.expert_blocks import ExpertBlocks
from kernels.grouped_product import MXFP4, ExpertWeight, GroupedConfig
from kernels.optional_gluon import (
    GluonTensorDescriptor,
    async_copy,
    barrier,
    copy_cells,
    copy_tile,
    gl,
    gluon,
    hopper,
    runs_gluon,
)
from kernels.unit_parts import is_aligned, words_layout

CHUNK = 128


def takes(x: Tensor, weight: ExpertWeight) -> bool:
    """Whether the device, Triton, and the layouts of these rows and this weight allow it."""
    if not runs_gluon(x) or x.dtype != torch.bfloat16 or not is_aligned(x):
        return False
    return weight.form == MXFP4 and is_aligned(weight.values)


def _numbers_assembly() -> str:
    """Inputs: words of two bytes 4 and 5, their factors 6 and 7. Outputs: the low halves' numbers of the first and of
    the second word, then the high halves'."""
    code = "{\n.reg .b32 bytes, bits, nothing;\nmov.b32 nothing, 0x80008000;\n"
    for word in range(2):
        code += f"prmt.b32 bytes, ${4 + word}, 0, 0x4140;\n"
        for half, (mask, factor) in enumerate((("0x000f000f", "0x1040"), ("0x00f000f0", "0x0104"))):
            code += f"and.b32 bits, bytes, {mask};\nmul.lo.u32 bits, bits, {factor};\n"
            code += "and.b32 bits, bits, 0x81c081c0;\n"
            code += f"fma.rn.bf16x2 ${2 * half + word}, bits, ${6 + word}, nothing;\n"
    return code + "}\n"


if gl is not None:
    _NUMBERS = gl.constexpr(_numbers_assembly())
    _NUMBERS_OPERANDS = gl.constexpr("=&r,=&r,=&r,=&r,r,r,r,r")
    _WAIT = gl.constexpr("griddepcontrol.launch_dependents; griddepcontrol.wait; // $0")


@gluon.jit
@no_type_check
def _in_order(first, last):
    """Two groups' halves [BLOCK_N, 16] -> [BLOCK_N, 2, 2, 4, 2]: group, pair, quad, element. As in int4_linear, the
    axis that distinguishes the words distinguishes the numbers, and the other way round."""
    first, last = gl.reshape(first, [first.shape[0], 2, 2, 4]), gl.reshape(last, [last.shape[0], 2, 2, 4])
    return gl.permute(gl.join(first, last), [0, 1, 4, 3, 2])


@gluon.jit
@no_type_check
def _numbers(words, scales, FIRST_GROUP: gl.constexpr, LAYOUT: gl.constexpr):
    """Words [BLOCK_N, 16] of two groups, and words of four groups' scales [BLOCK_N, 1] -> [BLOCK_N, 64] bf16."""
    BLOCK_N: gl.constexpr = words.shape[0]
    place = gl.expand_dims(gl.arange(0, 16, layout=gl.SliceLayout(0, words.type.layout)), 0)
    factors = ((scales >> ((place // 8 + FIRST_GROUP) * 8) & 255) + 62) * 0x00800080
    low_first, low_last, high_first, high_last = gl.inline_asm_elementwise(
        _NUMBERS, _NUMBERS_OPERANDS, [words, factors],
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip
    both = gl.join(_in_order(low_first, low_last), _in_order(high_first, high_last))
    in_order = gl.reshape(gl.permute(both, [0, 1, 5, 2, 3, 4]), [BLOCK_N, 64])
    return gl.convert_layout(in_order, LAYOUT, assert_trivial=True)


@gluon.jit
@no_type_check
def _ask_for(
    weight_desc, ws, full, xs, x_ptrs, is_row, column, slot, first_weight_row, chunk,
    NUM_CHUNKS: gl.constexpr, SIZE: gl.constexpr, BYTES: gl.constexpr,
):  # fmt: skip
    """Copy a chunk of x and of the weight into a slot; if there is no such chunk, commit an empty group of copies."""
    is_there = chunk < NUM_CHUNKS
    of_slot = full.index(slot)
    hopper.mbarrier.expect(of_slot, BYTES, pred=is_there)
    copy_tile(weight_desc, [first_weight_row, chunk * 32], of_slot, ws.index(slot), pred=is_there)
    is_cell = is_row & (column + chunk * 128 < SIZE)
    copy_cells(xs.index(slot), x_ptrs + chunk * 128, mask=is_cell)
    async_copy.commit_group()


@gluon.jit
@no_type_check
def _product(
    x_ptr, x_stride_row, pairs_ptr, weight_desc, scales_ptr, expert, first_feature, num_weight_rows,
    SIZE: gl.constexpr, TOP_K: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, NUM_STAGES: gl.constexpr,
    WARPS: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """[BLOCK_N, BLOCK_M] fp32, 2^64 times too small: rows of the expert's weight from first_feature on, times the rows
    of x that belong to the block's pairs."""
    WORDS: gl.constexpr = words_layout(BLOCK_N, WARPS, 32)
    HALF: gl.constexpr = words_layout(BLOCK_N, WARPS, 16)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    ROWS: gl.constexpr = gl.SliceLayout(1, HALF)
    COPIED: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [WARPS, 1], [1, 0])
    OF_X: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    BYTES: gl.constexpr = BLOCK_N * 64
    # A constant, so that the compiler sees that the loop runs; otherwise ptxas waits after each MMA.
    NUM_CHUNKS: gl.constexpr = (SIZE + 127) // 128
    xs = gl.allocate_shared_memory(gl.bfloat16, [NUM_STAGES, BLOCK_M, 128], OF_X)
    ws = gl.allocate_shared_memory(gl.int16, [NUM_STAGES, BLOCK_N, 32], weight_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM_STAGES):
        hopper.mbarrier.init(full.index(i), count=1)
    pair = gl.load(pairs_ptr + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, COPIED)))
    column = gl.expand_dims(gl.arange(0, 128, layout=gl.SliceLayout(0, COPIED)), 0)
    is_row = gl.expand_dims(pair >= 0, 1)
    x_ptrs = x_ptr + gl.expand_dims((pair // TOP_K).to(gl.int64) * x_stride_row, 1) + column
    first_weight_row = expert * num_weight_rows + first_feature
    row = gl.minimum(first_feature + gl.arange(0, BLOCK_N, layout=ROWS), num_weight_rows - 1)
    scales_ptrs = scales_ptr + expert.to(gl.int64) * NUM_CHUNKS * num_weight_rows + row
    for i in gl.static_range(NUM_STAGES - 1):
        _ask_for(weight_desc, ws, full, xs, x_ptrs, is_row, column, i, first_weight_row, i, NUM_CHUNKS, SIZE, BYTES)
    next_scales = gl.load(scales_ptrs)
    acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout=MMA)
    last = gl.zeros([BLOCK_N, 64], gl.bfloat16, layout=LEFT)
    for i in range(NUM_CHUNKS):
        slot = i % NUM_STAGES
        scales = gl.expand_dims(next_scales, 1)
        next_scales = gl.load(scales_ptrs + gl.minimum(i + 1, NUM_CHUNKS - 1) * num_weight_rows)
        hopper.mbarrier.wait(full.index(slot), phase=(i // NUM_STAGES) & 1)
        words = ws.index(slot).load(WORDS).to(gl.int32)
        first_words, last_words = gl.split(gl.permute(gl.reshape(words, [BLOCK_N, 2, 16]), [0, 2, 1]))
        first = _numbers(gl.convert_layout(first_words, HALF, assert_trivial=True), scales, 0, LEFT)
        async_copy.wait_group(NUM_STAGES - 2)
        hopper.fence_async_shared()
        barrier()  # all threads' copies of x have arrived
        acc = hopper.warpgroup_mma(first, xs.index(slot).slice(0, 64, 1).permute([1, 0]), acc, is_async=True)
        acc, last = hopper.warpgroup_mma_wait(1, deps=[acc, last])
        barrier()  # no warp reads the previous chunk's slot any more
        ahead = i + NUM_STAGES - 1
        _ask_for(
            weight_desc, ws, full, xs, x_ptrs, is_row, column, ahead % NUM_STAGES, first_weight_row, ahead, NUM_CHUNKS,
            SIZE, BYTES,
        )  # fmt: skip
        last = _numbers(gl.convert_layout(last_words, HALF, assert_trivial=True), scales, 2, LEFT)
        acc = hopper.warpgroup_mma(last, xs.index(slot).slice(64, 64, 1).permute([1, 0]), acc, is_async=True)
        acc, first = hopper.warpgroup_mma_wait(1, deps=[acc, first])
    acc, last = hopper.warpgroup_mma_wait(0, deps=[acc, last])
    async_copy.wait_group(0)
    return acc


@gluon.jit(do_not_specialize=["limit", "alpha"])
@no_type_check
def _mxfp4_units_kernel(
    x_ptr, weight_desc, scales_ptr, bias_ptr, pairs_ptr, block_experts_ptr, routing_ptr, out_ptr, x_stride_row,
    num_weight_rows, limit, alpha, SIZE: gl.constexpr, TOP_K: gl.constexpr, GATED: gl.constexpr,
    HAS_CLAMP: gl.constexpr, HAS_BIAS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    NUM_STAGES: gl.constexpr, WARPS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Program (block, strip): BLOCK_N rows of the expert's weight for a block of pairs. GATED: gates and ups alternate,
    and make half as many features; otherwise products are weighted by routing."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_M, 16])
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])
    if PDL:
        gl.inline_asm_elementwise(_WAIT, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    block = gl.program_id(0)
    expert = gl.load(block_experts_ptr + block)
    if expert < 0:
        return
    first_feature = gl.program_id(1) * BLOCK_N
    acc = _product(
        x_ptr, x_stride_row, pairs_ptr + block * BLOCK_M, weight_desc, scales_ptr, expert, first_feature,
        num_weight_rows, SIZE, TOP_K, BLOCK_M, BLOCK_N, NUM_STAGES, WARPS, MMA,
    )  # fmt: skip
    acc = gl.convert_layout(acc * 18446744073709551616.0, OUT)
    feature = first_feature + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, OUT))
    if HAS_BIAS:
        place = expert.to(gl.int64) * num_weight_rows + gl.minimum(feature, num_weight_rows - 1)
        acc += gl.expand_dims(gl.load(bias_ptr + place).to(gl.float32), 1)
    pair = gl.load(pairs_ptr + block * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, OUT)))
    if GATED:
        gate, up = gl.split(gl.permute(gl.reshape(acc, [BLOCK_N // 2, 2, BLOCK_M]), [0, 2, 1]))
        if HAS_CLAMP:
            gate = gl.minimum(gate, limit)
            up = gl.minimum(gl.maximum(up, -limit), limit)
            out = gate / (1 + gl.exp(-alpha * gate)) * (up + 1)
        else:
            out = gate / (1 + gl.exp(-gate)) * up
        num_features = num_weight_rows // 2
        HALVED: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [1, WARPS], [0, 1])
        out = gl.convert_layout(out, HALVED)
        feature = first_feature // 2 + gl.arange(0, BLOCK_N // 2, layout=gl.SliceLayout(1, HALVED))
        pair = gl.convert_layout(pair, gl.SliceLayout(0, HALVED))
    else:
        out = acc * gl.expand_dims(gl.load(routing_ptr + gl.maximum(pair, 0)), 0)
        num_features = num_weight_rows
    out_ptrs = out_ptr + gl.expand_dims(pair.to(gl.int64) * num_features, 0) + gl.expand_dims(feature, 1)
    is_out = gl.expand_dims(pair >= 0, 0) & gl.expand_dims(feature < num_features, 1)
    gl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=is_out)


def mxfp4_by_units(
    x: Tensor,
    weight: ExpertWeight,
    blocks: ExpertBlocks,
    config: GroupedConfig,
    out: Tensor,
    *,
    top_k: int = 1,
    is_gated: bool = False,
    clamp: tuple[float, float] | None = None,
    routing: Tensor | None = None,
) -> None:
    """Writes into out, one row per pair. x: row pair // top_k belongs to a pair. clamp: limit and alpha."""
    num_blocks, block_m = blocks.pairs.shape
    num_experts, num_weight_rows, width = weight.values.shape
    assert weight.scales is not None and config.block_m == block_m
    words = weight.values.view(torch.int16).view(num_experts * num_weight_rows, width // 2)
    of_words = gl.NVMMASharedLayout(64, 16, 2)
    _mxfp4_units_kernel[num_blocks, -(-num_weight_rows // config.block_n)](
        x,
        GluonTensorDescriptor.from_tensor(words, [config.block_n, CHUNK // 4], of_words),
        weight.scales,
        x if weight.bias is None else weight.bias,
        blocks.pairs,
        blocks.block_experts,
        weight.scales if routing is None else routing,
        out,
        x.stride(0),
        num_weight_rows,
        0.0 if clamp is None else clamp[0],
        0.0 if clamp is None else clamp[1],
        SIZE=2 * width,
        TOP_K=top_k,
        GATED=is_gated,
        HAS_CLAMP=clamp is not None,
        HAS_BIAS=weight.bias is not None,
        BLOCK_M=block_m,
        BLOCK_N=config.block_n,
        NUM_STAGES=config.num_stages,
        WARPS=config.num_warps,
        num_warps=config.num_warps,
        **dependent_launch(x.device),
    )
