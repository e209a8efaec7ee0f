"""The common parts of linears whose loop over K is written in Gluon (kernels/int4_linear.py, fp8_units.py): how a
launch is divided, parts of K that the last program merges, and how a tile of sums is stored. A part of kernels.

Sums are [BLOCK_N, BLOCK_M]: the weight is the left operand, of which the tensor cores need 64 rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch
from kernels.optional_gluon import barrier, gl, gluon


@dataclass(frozen=True, slots=True)
class UnitsConfig:
    """block_m: rows of x per program. block_n: output features per program, a multiple of 16 for each warp. num_splits:
    of K. block_k: input features per stage, unless the weight's form determines it."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    num_splits: int = 1
    block_k: int = 128


START_DEPENDENTS: Any = None
WAIT_FOR_INPUTS: Any = None
if gl is not None:
    START_DEPENDENTS = gl.constexpr("griddepcontrol.launch_dependents; // $0")
    WAIT_FOR_INPUTS = gl.constexpr("griddepcontrol.wait; // $0")


@gluon.constexpr_function
@no_type_check
def words_layout(block_n, num_warps, num_words):
    """How words of two bytes are distributed over threads to match the pairs of numbers in the left operand of an MMA:
    each warp has 16 rows, of which a thread has two, and of 8 adjacent words a thread's second one is 4 after its
    first."""
    registers = [[0, 4], [8, 0], *([0, words] for words in (8, 16) if words < num_words)]
    registers += [[rows, 0] for rows in (16 * num_warps << i for i in range(8)) if rows < block_n]
    warps = [[16 << i, 0] for i in range(num_warps.bit_length() - 1)]
    lanes = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [block_n, num_words])


@gluon.jit
@no_type_check
def part_ptrs_of(partial_ptr, BLOCK_N: gl.constexpr, BLOCK_M: gl.constexpr, LAYOUT: gl.constexpr):
    """[BLOCK_N, BLOCK_M]: where a program's sums over the first part of K go."""
    n = gl.expand_dims(gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, LAYOUT)), 1)
    m = gl.expand_dims(gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, LAYOUT)), 0)
    return partial_ptr + gl.program_id(0).to(gl.int64) * (BLOCK_N * BLOCK_M) + n * BLOCK_M + m


@gluon.jit
@no_type_check
def _next_part(part_ptrs):
    """The offset from a program's sums over one part to those over the next part."""
    return gl.num_programs(0).to(gl.int64) * (part_ptrs.shape[0] * part_ptrs.shape[1])


@gluon.jit
@no_type_check
def is_last_part(part, part_ptrs, arrivals_ptr, SPLITS: gl.constexpr):
    """Stores the split's part. Returns whether all parts are done now, so that this program must merge them."""
    gl.store(part_ptrs + gl.program_id(1) * _next_part(part_ptrs), part)
    barrier()  # one thread counts: only after the stores of all threads
    is_last = gl.atomic_add(arrivals_ptr + gl.program_id(0), 1, sem="acq_rel") == SPLITS - 1
    gl.store(arrivals_ptr + gl.program_id(0), 0, mask=is_last)
    return is_last


@gluon.jit
@no_type_check
def merged_parts(part_ptrs, SPLITS: gl.constexpr):
    """The sum of all parts. .cg: read from L2, where other programs' stores are."""
    acc = gl.load(part_ptrs, cache_modifier=".cg")
    for split in gl.static_range(1, SPLITS):
        acc += gl.load(part_ptrs + split * _next_part(part_ptrs), cache_modifier=".cg")
    return acc


@gluon.jit
@no_type_check
def store_turned(acc, out_ptr, first_row, first_feature, num_rows, num_features, LAYOUT: gl.constexpr):
    """Stores acc [BLOCK_N, BLOCK_M] transposed."""
    feature = gl.expand_dims(first_feature + gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, LAYOUT)), 1)
    m = gl.expand_dims(first_row + gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, LAYOUT)), 0)
    done = gl.convert_layout(acc.to(gl.bfloat16), LAYOUT)
    gl.store(out_ptr + m.to(gl.int64) * num_features + feature, done, mask=(m < num_rows) & (feature < num_features))


def is_aligned(rows: Tensor) -> bool:
    """Whether TMA can copy tiles of rows [..., rows, elements]: their start and stride are multiples of 16 bytes."""
    return rows.data_ptr() % 16 == 0 and rows.stride(-2) * rows.itemsize % 16 == 0


@dataclass(frozen=True, slots=True)
class UnitsLaunch:
    """grid: programs and splits. partial [splits, programs, BLOCK_N, BLOCK_M] fp32: each split's sums. constants: the
    kernel's, num_warps and PDL."""

    grid: tuple[int, int]
    arrivals: Tensor
    partial: Tensor
    constants: dict[str, Any]


def units_launch(
    num_rows: int,
    num_features: int,
    num_stages_of_k: int,
    arrivals: Tensor | None,
    config: UnitsConfig,
    stand_in: Tensor,
) -> UnitsLaunch:
    """stand_in: any tensor on the device, for `arrivals` and `partial` where there are none. If there are too few
    counters, K is not split."""
    num_tiles = -(-num_rows // config.block_m)
    num_programs = -(-num_features // config.block_n) * num_tiles
    num_splits, partial = min(config.num_splits, num_stages_of_k), stand_in
    if arrivals is None or num_programs > arrivals.shape[0]:
        num_splits = 1
    if num_splits > 1:
        shape = num_splits, num_programs, config.block_n, config.block_m
        partial = torch.empty(shape, dtype=torch.float32, device=stand_in.device)
    constants = {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "SPLITS": num_splits,
        "NUM_STAGES": config.num_stages,
        "TILES": num_tiles,
        "WARPS": config.num_warps,
        "num_warps": config.num_warps,
        **dependent_launch(stand_in.device),
    }
    return UnitsLaunch((num_programs, num_splits), stand_in if arrivals is None else arrivals, partial, constants)
