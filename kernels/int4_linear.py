"""Linear projection with an int4 weight that is dequantized in the registers that the tensor cores read: for batches
with too many rows for skinny_linear, and too few to make the plain matrix first.

    out[m, n] = sum_k x[m, k] * w[n, k] + bias[n],   w[n, k] = scales[n, g] * (element[n, k] - zeros[n, g]), rounded

Tensors (M rows, N output features, K input features):
    x         [M, K]  bf16, last stride 1; its start and row stride are multiples of 16 bytes
    weight    [N, K]  int4 QuantizedWeight for bf16, in chunks of 128 (kernels/quantized_weight.py)
    bias      [N]     bf16, contiguous; None for none
    arrivals [A] as in kernels/skinny_linear.py; None: K is not split
    returns   [M, N]  bf16, contiguous, new

Rounding: scales and w to bf16, as in the plain matrix; fp32 sums, rounded once at the end. A row's result does not
depend on the other rows, nor on their number within 1 to 16, 17 to 64, 65 to 128, 129 to 256, or above. M may be 0. Not
differentiable.

Two TMA copies bring a chunk of 128 input features to shared memory, some stages ahead. A thread loads two adjacent
bytes at a time: two pairs of numbers, as wgmma takes its left operand (the weight) in registers. Its right operand, x,
is in shared memory. While the tensor cores multiply one half of a chunk, the other half is dequantized, with 1.9
instructions per element. So the tensor cores wait only for memory. This needs Triton's Gluon, where this order is
explicit; Gluon has no interpreter.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_gluon import GluonTensorDescriptor, barrier, copy_tile, gl, gluon, hopper, runs_gluon
from kernels.quantized_weight import QuantizedWeight
from kernels.unit_parts import (
    START_DEPENDENTS,
    WAIT_FOR_INPUTS,
    UnitsConfig,
    is_aligned,
    is_last_part,
    merged_parts,
    part_ptrs_of,
    store_turned,
    units_launch,
    words_layout,
)

CHUNK = 128
_FEW_ROWS, _SOME_ROWS, _MORE_ROWS, _MANY_ROWS = 16, 64, 128, 256


def takes(x: Tensor, weight: QuantizedWeight) -> bool:
    """Whether the device, Triton, and the layouts of these rows and this weight allow it."""
    if not runs_gluon(x) or x.dtype != torch.bfloat16 or not is_aligned(x):
        return False
    return weight.is_int4 and weight.chunk == CHUNK and is_aligned(weight.elements)


def int4_linear_config(num_rows: int, num_features: int, size: int) -> UnitsConfig:
    """The best of 27 to 36 configs on one H200 (torch 2.11, triton 3.6). At Llama-8B's qkv, output, gate_up and down,
    groups of 128 with zeros, us: 16 rows 10.8, 10.3, 30.5, 25.2; 64 rows 14.9, 11.5, 39.4, 28.0; 256 rows 23.3, 17.3,
    89.9, 52.2; 512 rows 43.3, 25.1, 172, 82.6. cuBLAS of bf16 takes 16.1, 14.0, 57.9, 33.7; 17.3, 13.1, 66.1, 38.2;
    22.4, 17.2, 94.2, 50.3; 37.1, 25.2, 158, 80.6. Between 65 and 128 rows the configs are chosen by analogy, not
    measured.

    Each strip reads x from L2, so with many rows a program should take all of them; registers hold 4,096 sums per warp.
    """
    is_narrow, is_wide, is_long = num_features <= 4608, num_features > 12288, size > 8192
    if num_rows <= _FEW_ROWS:
        return UnitsConfig(16, 128, 8, 4) if is_wide else UnitsConfig(16, 128, 8, 3, num_splits=4)
    if num_rows <= _SOME_ROWS:
        block_m = 32 if num_rows <= 32 else 64
        if is_wide:
            return UnitsConfig(block_m, 128, 4, 3)
        if is_long:
            return UnitsConfig(block_m, 64, 4, 5, num_splits=4)
        return UnitsConfig(block_m, 64, 4, 6, 2) if is_narrow else UnitsConfig(block_m, 64, 4, 3, 4)
    if num_rows <= _MORE_ROWS:
        return UnitsConfig(128, 128, 4, 3) if is_wide else UnitsConfig(128, 64, 4, 4, 4 if is_long else 2)
    if num_rows <= _MANY_ROWS:
        if is_wide:
            return UnitsConfig(256, 128, 8, 3)
        if is_narrow and not is_long:
            return UnitsConfig(128, 64, 4, 4)
        return UnitsConfig(256, 64, 4, 3, 2 if is_long else 1)
    return UnitsConfig(256, 64, 4, 3) if is_narrow or is_wide else UnitsConfig(256, 128, 8, 3)


def int4_linear_reference(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    product = x.double() @ weight.dequantized().double().T
    return (product if bias is None else product + bias.double()).to(weight.dtype)


def _numbers_assembly(shift: int) -> str:
    """From two bytes each, take the low halves (or, with a shift, the high ones) as the last bits of two bf16 numbers
    of 128."""
    code = "{\n.reg .b32 bits;\n"
    for i in range(2):
        code += f"prmt.b32 bits, ${2 + i}, 0, 0x4140;\n"
        code += f"shr.b32 bits, bits, {shift};\n" if shift else ""
        code += f"lop3.b32 ${i}, bits, 0x000f000f, 0x43004300, 0xea;\n"
    return code + "}\n"


if gl is not None:
    _LOW, _HIGH = gl.constexpr(_numbers_assembly(0)), gl.constexpr(_numbers_assembly(4))
    _NUMBERS_OPERANDS = gl.constexpr("=r,=r,r,r")


@gluon.jit
@no_type_check
def _numbers(words, zeros, scales, ASSEMBLY: gl.constexpr, LAYOUT: gl.constexpr):
    """[BLOCK_N, 32] words of two bytes -> [BLOCK_N, 64] bf16: the low or the high halves. Adjacent words of a thread
    are 4 apart in K. Each word makes one register of two numbers, but Triton takes each output of the assembly for one
    number of each of the two words. So the axis that distinguishes the words distinguishes the numbers, and the other
    way round."""
    BLOCK_N: gl.constexpr = words.shape[0]
    first, last = gl.inline_asm_elementwise(
        ASSEMBLY, _NUMBERS_OPERANDS, [words], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=2
    )
    first = gl.reshape((first - zeros) * scales, [BLOCK_N, 4, 2, 4])
    last = gl.reshape((last - zeros) * scales, [BLOCK_N, 4, 2, 4])
    in_order = gl.reshape(gl.permute(gl.join(first, last), [0, 1, 4, 3, 2]), [BLOCK_N, 64])
    return gl.convert_layout(in_order, LAYOUT, assert_trivial=True)


@gluon.jit
@no_type_check
def _ask_for(x_desc, weight_desc, xs, ws, full, slot, first_row, first_feature, chunk, is_there):
    """Copy a chunk of x and of the weight into a slot."""
    barrier_of_slot = full.index(slot)
    BYTES: gl.constexpr = x_desc.block_type.nbytes + weight_desc.block_type.nbytes
    hopper.mbarrier.expect(barrier_of_slot, BYTES, pred=is_there)
    copy_tile(weight_desc, [first_feature, chunk * 32], barrier_of_slot, ws.index(slot), pred=is_there)
    copy_tile(x_desc, [first_row, chunk * 128], barrier_of_slot, xs.index(slot), pred=is_there)


@gluon.jit(do_not_specialize=["num_rows"])
@no_type_check
def _int4_linear_kernel(
    x_desc, weight_desc, scales_ptr, zeros_ptr, bias_ptr, arrivals_ptr, partial_ptr, out_ptr, num_rows, num_features,
    size, HAS_BIAS: gl.constexpr, HAS_ZEROS: gl.constexpr, GROUP: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, SPLITS: gl.constexpr, NUM_STAGES: gl.constexpr, TILES: gl.constexpr, WARPS: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Program (strip, split): BLOCK_N output features of one of TILES tiles of rows; the tiles of a strip have adjacent
    program ids. GROUP 0: one scale per channel."""
    WORDS: gl.constexpr = words_layout(BLOCK_N, WARPS, 32)
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_M, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    ROWS: gl.constexpr = gl.SliceLayout(1, WORDS)
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])
    if PDL:
        gl.inline_asm_elementwise(START_DEPENDENTS, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    program, split = gl.program_id(0), gl.program_id(1)
    first_feature, first_row = program // TILES * BLOCK_N, program % TILES * BLOCK_M
    num_chunks = size // 128
    begin = split * num_chunks // SPLITS
    count = (split + 1) * num_chunks // SPLITS - begin
    gl.assume(count > 0)  # else ptxas waits after every MMA, since a loop that may not run has other sums
    xs = gl.allocate_shared_memory(gl.bfloat16, [NUM_STAGES, BLOCK_M, 128], x_desc.layout)
    ws = gl.allocate_shared_memory(gl.int16, [NUM_STAGES, BLOCK_N, 32], weight_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM_STAGES):
        hopper.mbarrier.init(full.index(i), count=1)
    row = gl.minimum(first_feature + gl.arange(0, BLOCK_N, layout=ROWS), num_features - 1).to(gl.int64)
    groups = size // GROUP if GROUP > 0 else 1
    scales_ptrs, zeros_ptrs = scales_ptr + row * groups, zeros_ptr + row * groups
    if PDL:
        gl.inline_asm_elementwise(WAIT_FOR_INPUTS, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    for i in gl.static_range(NUM_STAGES - 1):
        _ask_for(x_desc, weight_desc, xs, ws, full, i, first_row, first_feature, begin + i, i < count)
    group = begin * 128 // GROUP if GROUP > 0 else 0
    scales = gl.load(scales_ptrs + group)
    if HAS_ZEROS:
        zeros = gl.load(zeros_ptrs + group)
    acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout=MMA)
    high = gl.zeros([BLOCK_N, 64], gl.bfloat16, layout=LEFT)
    for i in range(count):
        slot = i % NUM_STAGES
        factors = gl.expand_dims(scales.to(gl.float32).to(gl.bfloat16), 1)
        raised = gl.full([BLOCK_N, 1], 136.0, gl.bfloat16, layout=WORDS)
        if HAS_ZEROS:
            raised = gl.expand_dims((zeros.to(gl.float32) + 128).to(gl.bfloat16), 1)
        hopper.mbarrier.wait(full.index(slot), phase=(i // NUM_STAGES) & 1)
        words = ws.index(slot).load(WORDS).to(gl.int32)
        low = _numbers(words, raised, factors, _LOW, LEFT)
        acc = hopper.warpgroup_mma(low, xs.index(slot).slice(0, 64, 1).permute([1, 0]), acc, is_async=True)
        acc, high = hopper.warpgroup_mma_wait(1, deps=[acc, high])
        barrier()  # no warp reads the previous chunk's slot any more
        ahead = i + NUM_STAGES - 1
        is_there = ahead < count
        _ask_for(
            x_desc, weight_desc, xs, ws, full, ahead % NUM_STAGES, first_row, first_feature, begin + ahead, is_there
        )
        if GROUP > 0:
            group = gl.minimum(begin + i + 1, num_chunks - 1) * 128 // GROUP
            scales = gl.load(scales_ptrs + group)
            if HAS_ZEROS:
                zeros = gl.load(zeros_ptrs + group)
        high = _numbers(words, raised, factors, _HIGH, LEFT)
        acc = hopper.warpgroup_mma(high, xs.index(slot).slice(64, 64, 1).permute([1, 0]), acc, is_async=True)
        acc, low = hopper.warpgroup_mma_wait(1, deps=[acc, low])
    acc, high = hopper.warpgroup_mma_wait(0, deps=[acc, high])
    if SPLITS > 1:
        part_ptrs = part_ptrs_of(partial_ptr, BLOCK_N, BLOCK_M, MMA)
        if not is_last_part(acc, part_ptrs, arrivals_ptr, SPLITS):
            return
        acc = merged_parts(part_ptrs, SPLITS)
    if HAS_BIAS:
        place = gl.minimum(first_feature + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, MMA)), num_features - 1)
        acc += gl.expand_dims(gl.load(bias_ptr + place).to(gl.float32), 1)
    store_turned(acc, out_ptr, first_row, first_feature, num_rows, num_features, OUT)


def int4_linear_triton(
    x: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None = None,
    arrivals: Tensor | None = None,
    config: UnitsConfig | None = None,
) -> Tensor:
    """On CUDA tensors of sm_90. `config` is for measuring: None takes the table's."""
    (num_rows, size), num_features = x.shape, weight.shape[0]
    assert weight.is_int4 and weight.chunk == CHUNK and weight.shape[1] == size and weight.dtype == torch.bfloat16
    assert x.dtype == torch.bfloat16 and (x.stride(-1) == 1 or not num_rows)
    assert bias is None or (bias.shape == (num_features,) and bias.is_contiguous())
    out = torch.empty((num_rows, num_features), dtype=weight.dtype, device=x.device)
    if not out.numel():
        return out
    config = config or int4_linear_config(num_rows, num_features, size)
    launch = units_launch(num_rows, num_features, size // CHUNK, arrivals, config, x)
    words = weight.elements.view(torch.int16)
    of_x, of_words = gl.NVMMASharedLayout(128, 16, 2), gl.NVMMASharedLayout(64, 16, 2)
    _int4_linear_kernel[launch.grid](
        GluonTensorDescriptor.from_tensor(x, [config.block_m, CHUNK], of_x),
        GluonTensorDescriptor.from_tensor(words, [config.block_n, CHUNK // 4], of_words),
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        out if bias is None else bias,
        launch.arrivals,
        launch.partial,
        out,
        num_rows,
        num_features,
        size,
        HAS_BIAS=bias is not None,
        HAS_ZEROS=weight.zeros is not None,
        GROUP=weight.group_size if weight.scales.shape[1] > 1 else 0,
        **launch.constants,
    )
    return out


def int4_linear(
    x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, arrivals: Tensor | None = None
) -> Tensor:
    if not x.is_cuda:
        return int4_linear_reference(x, weight, bias)
    return int4_linear_triton(x, weight, bias, arrivals)
