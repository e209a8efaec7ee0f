"""Twin of kernels/fp8_linear.py, with the same contract, with an explicit loop over K in Gluon, for sm_90. TMA copies
run some stages ahead, and while the tensor cores multiply one stage the next is awaited. The weight's first stages are
copied before the wait for the previous kernel (kernels/dependent_launch.py), because nothing writes to the weight."""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_gluon import GluonTensorDescriptor, barrier, copy_tile, gl, gluon, hopper, runs_gluon
from kernels.quantized_weight import FP8, QuantizedWeight
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
)

_FEW_ROWS, _SOME_ROWS = 16, 64
_LEAST_FEATURES, _MOST_NARROW, _MOST_FEATURES = 4096, 4608, 12288


def fp8_units_config(num_rows: int, num_features: int, size: int) -> UnitsConfig | None:
    """None where kernels/fp8_linear.py is as fast, or was not timed beside it. The best of some 50 configs on one H200
    (torch 2.11, triton 3.6). At Llama-8B's qkv, output and down, us, and fp8_linear's in the same run: 64 rows 9.0
    (11.7), 7.2 (9.7), 18.8 (22.2); 256 rows 13.7 (16.1), 9.9 (12.3), 28.1 (35.9). gate_up of 64 rows takes 34.6 (35.2),
    of 256 rows 53.5 (56.1). If the weight's first stages are copied only after the wait, the same tile takes 10.3 for
    qkv.
    """
    if num_rows <= _FEW_ROWS or not _LEAST_FEATURES <= num_features <= _MOST_FEATURES:
        return None
    if num_rows <= _SOME_ROWS:
        return UnitsConfig(64, 64, 4, 7, block_k=256)
    return UnitsConfig(128, 64, 4, 4, block_k=256) if num_features <= _MOST_NARROW else UnitsConfig(128, 128, 8, 7)


def takes(x: Tensor, weight: QuantizedWeight) -> bool:
    """Whether the device, Triton, and the layouts of these rows and this weight allow it."""
    if not runs_gluon(x) or not x.dtype == weight.elements.dtype == FP8:
        return False
    return is_aligned(x) and is_aligned(weight.elements) and weight.scales.shape[1] == 1


@gluon.jit
@no_type_check
def _ask_for_weight(x_desc, weight_desc, ws, full, slot, first_feature, k, is_there):
    """Copy a stage of the weight into a slot, which is complete once the same stage of x has been copied too."""
    of_slot = full.index(slot)
    BYTES: gl.constexpr = x_desc.block_type.nbytes + weight_desc.block_type.nbytes
    hopper.mbarrier.expect(of_slot, BYTES, pred=is_there)
    copy_tile(weight_desc, [first_feature, k], of_slot, ws.index(slot), pred=is_there)


@gluon.jit
@no_type_check
def _ask_for(x_desc, weight_desc, xs, ws, full, slot, first_row, first_feature, k, is_there):
    """Copy a stage of x and of the weight into a slot."""
    _ask_for_weight(x_desc, weight_desc, ws, full, slot, first_feature, k, is_there)
    copy_tile(x_desc, [first_row, k], full.index(slot), xs.index(slot), pred=is_there)


@gluon.jit(do_not_specialize=["num_rows"])
@no_type_check
def _fp8_units_kernel(
    x_desc, x_scales_ptr, weight_desc, weight_scales_ptr, bias_ptr, arrivals_ptr, partial_ptr, out_ptr, num_rows,
    num_features, num_stages_of_k, HAS_BIAS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr, SPLITS: gl.constexpr, NUM_STAGES: gl.constexpr, TILES: gl.constexpr, WARPS: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Program (strip, split): BLOCK_N output features of one of TILES tiles of rows; the tiles of a strip have adjacent
    program ids."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_M, 32])
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, WARPS], [0, 1])
    if PDL:
        gl.inline_asm_elementwise(START_DEPENDENTS, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    program, split = gl.program_id(0), gl.program_id(1)
    first_feature, first_row = program // TILES * BLOCK_N, program % TILES * BLOCK_M
    begin = split * num_stages_of_k // SPLITS
    count = (split + 1) * num_stages_of_k // SPLITS - begin
    gl.assume(count > 0)  # see int4_linear
    xs = gl.allocate_shared_memory(gl.float8e4nv, [NUM_STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    ws = gl.allocate_shared_memory(gl.float8e4nv, [NUM_STAGES, BLOCK_N, BLOCK_K], weight_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM_STAGES):
        hopper.mbarrier.init(full.index(i), count=1)
    for i in gl.static_range(NUM_STAGES - 1):
        _ask_for_weight(x_desc, weight_desc, ws, full, i, first_feature, (begin + i) * BLOCK_K, i < count)
    if PDL:
        gl.inline_asm_elementwise(WAIT_FOR_INPUTS, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    for i in gl.static_range(NUM_STAGES - 1):
        copy_tile(x_desc, [first_row, (begin + i) * BLOCK_K], full.index(i), xs.index(i), pred=i < count)
    acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, layout=MMA)
    for i in range(count):
        slot = i % NUM_STAGES
        hopper.mbarrier.wait(full.index(slot), phase=(i // NUM_STAGES) & 1)
        acc = hopper.warpgroup_mma(ws.index(slot), xs.index(slot).permute([1, 0]), acc, is_async=True)
        acc = hopper.warpgroup_mma_wait(1, deps=[acc])
        barrier()  # no warp reads the previous stage's slot any more
        ahead = i + NUM_STAGES - 1
        k = (begin + ahead) * BLOCK_K
        _ask_for(x_desc, weight_desc, xs, ws, full, ahead % NUM_STAGES, first_row, first_feature, k, ahead < count)
    acc = hopper.warpgroup_mma_wait(0, deps=[acc])
    if SPLITS > 1:
        part_ptrs = part_ptrs_of(partial_ptr, BLOCK_N, BLOCK_M, MMA)
        if not is_last_part(acc, part_ptrs, arrivals_ptr, SPLITS):
            return
        acc = merged_parts(part_ptrs, SPLITS)
    feature = gl.minimum(first_feature + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, MMA)), num_features - 1)
    row = gl.minimum(first_row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, MMA)), num_rows - 1)
    acc *= gl.expand_dims(gl.load(weight_scales_ptr + feature).to(gl.float32), 1)
    acc *= gl.expand_dims(gl.load(x_scales_ptr + row), 0)
    if HAS_BIAS:
        acc += gl.expand_dims(gl.load(bias_ptr + feature).to(gl.float32), 1)
    store_turned(acc, out_ptr, first_row, first_feature, num_rows, num_features, OUT)


def fp8_units_triton(
    x: Tensor,
    x_scales: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None,
    arrivals: Tensor | None,
    config: UnitsConfig,
) -> Tensor:
    """On CUDA tensors of sm_90."""
    (num_rows, size), num_features = x.shape, weight.shape[0]
    assert x_scales.shape == (num_rows, 1) and x_scales.dtype == torch.float32 and x_scales.is_contiguous()
    assert weight.shape[1] == size and weight.scales.shape[1] == 1
    out = torch.empty((num_rows, num_features), dtype=weight.dtype, device=x.device)
    if not out.numel():
        return out
    num_stages_of_k = -(-size // config.block_k)
    launch = units_launch(num_rows, num_features, num_stages_of_k, arrivals, config, x_scales)
    layout = gl.NVMMASharedLayout(128, 8, 2)
    _fp8_units_kernel[launch.grid](
        GluonTensorDescriptor.from_tensor(x, [config.block_m, config.block_k], layout),
        x_scales,
        GluonTensorDescriptor.from_tensor(weight.elements, [config.block_n, config.block_k], layout),
        weight.scales,
        out if bias is None else bias,
        launch.arrivals,
        launch.partial,
        out,
        num_rows,
        num_features,
        num_stages_of_k,
        HAS_BIAS=bias is not None,
        BLOCK_K=config.block_k,
        **launch.constants,
    )
    return out
