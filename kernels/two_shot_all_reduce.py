"""The sum over ranks in two exchanges: each rank sums its part of x for all, and writes it to all. For many rows, where
bytes are all: 2 (R - 1) / R of x a rank, as a ring moves, with two waits instead of 2 (R - 1).

    out = round(x of rank 0 + x of rank 1 + ...), in fp32 in this order

The same bits on every rank, and those of kernels/one_shot_all_reduce.py, whose contract and reference hold here.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.one_shot_all_reduce import check_summable, sum_over_ranks
from kernels.optional_triton import tl, triton
from kernels.symmetric_memory import (
    MAX_PROGRAMS,
    NUM_PROGRAMS,
    SymmetricMemory,
    buffer_of,
    end_launch,
    flag_bytes,
    wait_for_ranks,
)

_BLOCK = 4096  # elements a turn: 16 warps, one 16-byte load a thread in bf16
_PART_ALIGNMENT = 64  # elements, so that each part begins where memory is read best


@triton.jit(do_not_specialize=["rank"])
@no_type_check
def _two_shot_all_reduce_kernel(
    x_ptr,
    out_ptr,
    buffers_ptr,
    steps_ptr,
    size,
    part_size,
    rank,
    inputs,  # bytes to the inputs
    capacity,
    SIZE: tl.constexpr,
    MAX_PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: of every rank's part every num_programs-th block of elements."""
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    wait_for_inputs(PDL)
    step = tl.load(steps_ptr + program)
    turn = step // 2 % 2 * capacity
    offset, results = inputs + turn, inputs + 2 * capacity + turn
    own_ptr = buffer_of(buffers_ptr, rank, offset, x_ptr)
    for part in tl.static_range(SIZE):
        stop = tl.minimum((part + 1) * part_size, size)
        for first in range(part * part_size + program * BLOCK, stop, num_programs * BLOCK):
            place = first + tl.arange(0, BLOCK)
            tl.store(own_ptr + place, tl.load(x_ptr + place, mask=place < stop), mask=place < stop)
    wait_for_ranks(buffers_ptr, steps_ptr, rank, program, step + 1, SIZE)
    stop = tl.minimum((rank + 1) * part_size, size)
    for first in range(rank * part_size + program * BLOCK, stop, num_programs * BLOCK):
        place = first + tl.arange(0, BLOCK)
        total = sum_over_ranks(buffers_ptr, offset, place, place < stop, x_ptr, SIZE).to(x_ptr.dtype.element_ty)
        for peer in tl.static_range(SIZE):
            tl.store(buffer_of(buffers_ptr, peer, results, x_ptr) + place, total, mask=place < stop)
    wait_for_ranks(buffers_ptr, steps_ptr, rank, program, step + 2, SIZE)
    summed_ptr = buffer_of(buffers_ptr, rank, results, x_ptr)
    for part in tl.static_range(SIZE):
        stop = tl.minimum((part + 1) * part_size, size)
        for first in range(part * part_size + program * BLOCK, stop, num_programs * BLOCK):
            place = first + tl.arange(0, BLOCK)
            tl.store(out_ptr + place, tl.load(summed_ptr + place, mask=place < stop), mask=place < stop)
    end_launch(steps_ptr, program, num_programs, step, MAX_PROGRAMS)


def two_shot_all_reduce(x: Tensor, memory: SymmetricMemory) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter."""
    check_summable(x, memory)
    out = torch.empty_like(x)
    if x.numel():
        part_size = triton.cdiv(triton.cdiv(x.numel(), memory.size), _PART_ALIGNMENT) * _PART_ALIGNMENT
        _two_shot_all_reduce_kernel[(min(NUM_PROGRAMS, triton.cdiv(part_size, _BLOCK)),)](
            x,
            out,
            memory.buffers,
            memory.steps,
            x.numel(),
            part_size,
            memory.rank,
            flag_bytes(memory.size),
            memory.capacity,
            SIZE=memory.size,
            MAX_PROGRAMS=MAX_PROGRAMS,
            BLOCK=_BLOCK,
            num_warps=16,
            **dependent_launch(x.device),
        )
    return out
