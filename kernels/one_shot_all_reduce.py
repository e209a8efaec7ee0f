"""One-shot all-reduce: every rank sends its whole x to every other rank. For two ranks, and for few rows of more ranks,
where latency dominates: (R - 1) x bytes over each rank's link, and one wait.

    out = round(x of rank 0 + x of rank 1 + ...), in fp32 in this order

Every rank gets the same bits. (NCCL's ring takes as many steps as there are ranks, two-shot takes two.)

`one_shot_add_rms_norm` adds what follows in a block: sum = round(out + residual); norm = rms_norm(sum), both as in
kernels/rms_norm.py.

Tensors (N elements; T rows of C):
    x         [...]   bf16 or fp32, contiguous; with add_rms_norm [T, C]. N < 2^31
    residual  [T, C]  like x; consumed: the sum takes its storage
    weight    [C]     like x
    returns   out     like x, new; add_rms_norm: (norm, sum)
memory: kernels/symmetric_memory.py, whose rules apply: all ranks, the same order, one stream, the same `config`. Rows
that do not fit it go into another launch. N may be 0.

The references take `parts` [ranks, ...]: every rank's x.
"""

from __future__ import annotations

from typing import no_type_check

from torch import Tensor

from kernels.dependent_launch import wait_for_inputs
from kernels.mail import (
    MailConfig,
    Rows,
    bits_of,
    finish_rows,
    launch_rows,
    normed_rows,
    plain_rows,
    sealed,
    slot_after,
    sum_of_mail,
)
from kernels.optional_triton import tl, triton
from kernels.rms_norm import add_rms_norm_reference
from kernels.symmetric_memory import SymmetricMemory, buffer_of, end_launch

ONE_SHOT = MailConfig(programs=128, num_warps=16, ahead=1)


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
def _send(x_ptr, buffers_ptr, mail, rank, row, size, column, num_elements, SIZE: tl.constexpr):
    """Send a row of x to all other ranks; nothing if the row does not exist."""
    place = row * size + column
    is_place = (column < size) & (place < num_elements)
    bits = sealed(tl.load(x_ptr + place, mask=is_place, other=0.0))
    for distance in tl.static_range(1, SIZE):
        peer_ptr = buffer_of(buffers_ptr, (rank + distance) % SIZE, mail, bits_of(x_ptr))
        tl.store(peer_ptr + (slot_after(distance, SIZE) * num_elements + place), bits, mask=is_place)


@triton.jit(do_not_specialize=["rank", "num_rows"])
@no_type_check
def _one_shot_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    buffers_ptr,
    steps_ptr,
    num_elements,
    num_rows,
    size,
    eps,
    rank,
    first_mail,  # bytes to the mail
    capacity,
    SIZE: tl.constexpr,
    NORM: tl.constexpr,
    AHEAD: tl.constexpr,
    MAX_PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: every num_programs-th row."""
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    wait_for_inputs(PDL)
    step = tl.load(steps_ptr + program)
    mail = first_mail + step // 2 % 2 * capacity
    weight = tl.load(weight_ptr + column, mask=column < size, other=0.0).to(tl.float32) if NORM else 0.0
    for number in tl.static_range(AHEAD):
        row = program + number * num_programs
        _send(x_ptr, buffers_ptr, mail, rank, row, size, column, num_elements, SIZE)
    for row in range(program, num_rows, num_programs):
        _send(x_ptr, buffers_ptr, mail, rank, row + AHEAD * num_programs, size, column, num_elements, SIZE)
        place = row * size + column
        is_place = (column < size) & (place < num_elements)
        own = tl.load(x_ptr + place, mask=is_place, other=0.0)
        residual = tl.load(residual_ptr + place, mask=is_place, other=0.0) if NORM else own
        total = sum_of_mail(own, buffers_ptr, mail, rank, place, is_place, num_elements, x_ptr, SIZE)
        reduced = total.to(x_ptr.dtype.element_ty)
        finish_rows(reduced, residual, weight, residual_ptr, out_ptr, place, is_place, size, eps, 0, NORM)
    end_launch(steps_ptr, program, num_programs, step, MAX_PROGRAMS)


def one_shot_all_reduce(x: Tensor, memory: SymmetricMemory, config: MailConfig = ONE_SHOT) -> Tensor:
    """Takes CUDA tensors, or any in Triton's interpreter; so do all launchers here."""
    return _summed(plain_rows(x), memory, config)


def one_shot_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, memory: SymmetricMemory, config: MailConfig = ONE_SHOT
) -> tuple[Tensor, Tensor]:
    return _summed(normed_rows(x, residual, weight, eps), memory, config), residual


def _summed(rows: Rows, memory: SymmetricMemory, config: MailConfig) -> Tensor:
    most_rows = memory.capacity // ((memory.size - 1) * rows.row_bytes)
    for part in rows.in_parts(most_rows):
        launch_rows(_one_shot_kernel, part, part.num_rows, memory, config)
    return rows.out
