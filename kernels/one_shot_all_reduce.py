"""The sum over ranks in one exchange: every rank reads every other's x whole. For few rows, where waiting is all.

    out = round(x of rank 0 + x of rank 1 + ...), in fp32 in this order

The same bits on every rank. NCCL's rings go as many steps as there are ranks, and two-shot two: one-shot moves more
bytes and waits once. As TensorRT-LLM and vLLM have it for small messages, over torch's symmetric memory.

`one_shot_add_rms_norm` goes on with what follows in a block: sum = round(out + residual); norm = rms_norm(sum), each as
kernels/rms_norm.py has it.

Tensors (N elements; T rows of C):
    x         [...]   bf16 or fp32, contiguous; with add_rms_norm [T, C]. At most `memory.capacity` bytes; N < 2^31
    residual  [T, C]  like x; consumed: the sum takes its storage
    weight    [C]     like x
    returns   out     like x, new; add_rms_norm: (norm, sum)
memory: kernels/symmetric_memory.py, whose rules hold: all ranks, the same order, one stream. N may be 0.

The references take `parts` [ranks, ...], every rank's x.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import tl, triton
from kernels.rms_norm import add_rms_norm_reference
from kernels.symmetric_memory import (
    MAX_PROGRAMS,
    NUM_PROGRAMS,
    SymmetricMemory,
    buffer_of,
    end_launch,
    flag_bytes,
    wait_for_ranks,
)

MAX_NORMED_SIZE = 16384
_BLOCK = 2048  # elements a turn: 8 warps, one 16-byte load a thread in bf16


def one_shot_all_reduce_reference(parts: Tensor) -> Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts.dtype)


def one_shot_add_rms_norm_reference(
    parts: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return add_rms_norm_reference(one_shot_all_reduce_reference(parts), residual, weight, eps)


@triton.jit
@no_type_check
def sum_over_ranks(buffers_ptr, offset, place, is_place, like_ptr, SIZE: tl.constexpr):
    """Of what all ranks have at `place`, in fp32 in their order."""
    total = tl.load(buffer_of(buffers_ptr, 0, offset, like_ptr) + place, mask=is_place, other=0.0).to(tl.float32)
    for peer in tl.static_range(1, SIZE):
        theirs = tl.load(buffer_of(buffers_ptr, peer, offset, like_ptr) + place, mask=is_place, other=0.0)
        total += theirs.to(tl.float32)
    return total


@triton.jit(do_not_specialize=["rank"])
@no_type_check
def _one_shot_all_reduce_kernel(
    x_ptr,
    out_ptr,
    buffers_ptr,
    steps_ptr,
    size,
    rank,
    inputs,  # bytes to the inputs
    capacity,
    SIZE: tl.constexpr,
    MAX_PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: every num_programs-th block of elements."""
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    wait_for_inputs(PDL)
    step = tl.load(steps_ptr + program)
    offset = inputs + step // 2 % 2 * capacity
    own_ptr = buffer_of(buffers_ptr, rank, offset, x_ptr)
    for first in range(program * BLOCK, size, num_programs * BLOCK):
        place = first + tl.arange(0, BLOCK)
        tl.store(own_ptr + place, tl.load(x_ptr + place, mask=place < size), mask=place < size)
    wait_for_ranks(buffers_ptr, steps_ptr, rank, program, step + 1, SIZE)
    for first in range(program * BLOCK, size, num_programs * BLOCK):
        place = first + tl.arange(0, BLOCK)
        total = sum_over_ranks(buffers_ptr, offset, place, place < size, x_ptr, SIZE)
        tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=place < size)
    end_launch(steps_ptr, program, num_programs, step, MAX_PROGRAMS)


@triton.jit(do_not_specialize=["rank", "num_rows"])
@no_type_check
def _one_shot_add_rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    buffers_ptr,
    steps_ptr,
    num_rows,
    size,
    eps,
    rank,
    inputs,
    capacity,
    SIZE: tl.constexpr,
    MAX_PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: every num_programs-th row."""
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    is_column = column < size
    wait_for_inputs(PDL)
    step = tl.load(steps_ptr + program)
    offset = inputs + step // 2 % 2 * capacity
    weight = tl.load(weight_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    own_ptr = buffer_of(buffers_ptr, rank, offset, x_ptr)
    for row in range(program, num_rows, num_programs):
        place = row * size + column
        tl.store(own_ptr + place, tl.load(x_ptr + place, mask=is_column), mask=is_column)
    wait_for_ranks(buffers_ptr, steps_ptr, rank, program, step + 1, SIZE)
    for row in range(program, num_rows, num_programs):
        place = row * size + column
        residual = tl.load(residual_ptr + place, mask=is_column, other=0.0).to(tl.float32)
        reduced = sum_over_ranks(buffers_ptr, offset, place, is_column, x_ptr, SIZE)
        rounded = reduced.to(x_ptr.dtype.element_ty).to(tl.float32)
        added = (rounded + residual).to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + place, added, mask=is_column)
        total = added.to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(total * total, 0) / size + eps)
        tl.store(out_ptr + place, (total * scale * weight).to(out_ptr.dtype.element_ty), mask=is_column)
    end_launch(steps_ptr, program, num_programs, step, MAX_PROGRAMS)


def one_shot_all_reduce(x: Tensor, memory: SymmetricMemory) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter; so for every launcher here."""
    check_summable(x, memory)
    out = torch.empty_like(x)
    if x.numel():
        grid = (min(NUM_PROGRAMS, triton.cdiv(x.numel(), _BLOCK)),)
        _one_shot_all_reduce_kernel[grid](
            x,
            out,
            memory.buffers,
            memory.steps,
            x.numel(),
            memory.rank,
            flag_bytes(memory.size),
            memory.capacity,
            SIZE=memory.size,
            MAX_PROGRAMS=MAX_PROGRAMS,
            BLOCK=_BLOCK,
            num_warps=8,
            **dependent_launch(x.device),
        )
    return out


def one_shot_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, memory: SymmetricMemory
) -> tuple[Tensor, Tensor]:
    check_summable(x, memory)
    num_rows, size = x.shape
    assert size <= MAX_NORMED_SIZE
    assert residual.shape == x.shape and residual.is_contiguous() and weight.shape == (size,) and weight.is_contiguous()
    assert x.dtype == residual.dtype == weight.dtype
    out = torch.empty_like(x)
    if x.numel():
        block = triton.next_power_of_2(size)
        _one_shot_add_rms_norm_kernel[(min(NUM_PROGRAMS, num_rows),)](
            x,
            residual,
            weight,
            out,
            memory.buffers,
            memory.steps,
            num_rows,
            size,
            eps,
            memory.rank,
            flag_bytes(memory.size),
            memory.capacity,
            SIZE=memory.size,
            MAX_PROGRAMS=MAX_PROGRAMS,
            BLOCK=block,
            num_warps=min(16, max(1, block // 256)),
            **dependent_launch(x.device),
        )
    return out, residual


def check_summable(x: Tensor, memory: SymmetricMemory) -> None:
    assert x.is_contiguous() and x.dtype in (torch.bfloat16, torch.float32)
    assert x.nbytes <= memory.capacity and x.numel() < 2**31
