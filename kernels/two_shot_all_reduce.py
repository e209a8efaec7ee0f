"""Two-shot all-reduce: every rank sums a share of the rows, which the others send it, and sends the sums to all. For
many rows of more than two ranks, where bandwidth dominates: 2 (R - 1) / R of x over each rank's link, as in a ring, but
two waits instead of 2 (R - 1).

    out = round(x of rank 0 + x of rank 1 + ...), in fp32 in this order

Every rank gets the same bits, those of kernels/one_shot_all_reduce.py, whose contract and references apply here.
`two_shot_add_rms_norm`: every rank norms all rows, since sending residuals would move more.
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
    opened,
    plain_rows,
    sealed,
    slot_after,
    sum_of_mail,
)
from kernels.optional_triton import tl, triton
from kernels.symmetric_memory import SymmetricMemory, buffer_of, end_launch

TWO_SHOT = MailConfig(programs=256, num_warps=8, ahead=0)
_ELEMENTS_A_WARP = 1024  # of the rows that a program finishes at once


@triton.jit
@no_type_check
def _send_parts(x_ptr, buffers_ptr, mail, rank, group, size, column, num_elements, stride, SIZE: tl.constexpr):
    """Send each other rank its row of a group (one row for each rank)."""
    for distance in tl.static_range(1, SIZE):
        peer = (rank + distance) % SIZE
        place = (group * SIZE + peer) * size + column
        is_place = (column < size) & (place < num_elements)
        bits = sealed(tl.load(x_ptr + place, mask=is_place, other=0.0))
        to_place = slot_after(distance, SIZE) * stride + group * size + column
        tl.store(buffer_of(buffers_ptr, peer, mail, bits_of(x_ptr)) + to_place, bits, mask=is_place)


@triton.jit
@no_type_check
def _send_sum(x_ptr, buffers_ptr, mail, sums, rank, group, size, column, num_elements, stride, SIZE: tl.constexpr):
    """Sum this rank's row of a group, and send the sum to all ranks, itself included."""
    at = group * size + column
    place = (group * SIZE + rank) * size + column
    is_place = (column < size) & (place < num_elements)
    own = tl.load(x_ptr + place, mask=is_place, other=0.0)
    total = sum_of_mail(own, buffers_ptr, mail, rank, at, is_place, stride, x_ptr, SIZE)
    bits = sealed(total.to(x_ptr.dtype.element_ty))
    for distance in tl.static_range(1, SIZE + 1):
        peer = (rank + distance) % SIZE
        tl.store(buffer_of(buffers_ptr, peer, sums, bits_of(x_ptr)) + place, bits, mask=is_place)


@triton.jit
@no_type_check
def _taken(sums_ptr, places, are_places, dtype: tl.constexpr):
    """Wait for the sums at `places`, [rows, columns], return them, and reset the places to zero."""
    bits = tl.load(sums_ptr + places, mask=are_places, other=-1, volatile=True)
    while tl.max(tl.max((bits == 0).to(tl.int32), 0), 0) > 0:
        bits = tl.load(sums_ptr + places, mask=are_places, other=-1, volatile=True)
    tl.store(sums_ptr + places, tl.zeros(places.shape, bits.dtype), mask=are_places)
    return opened(bits, dtype)


@triton.jit(do_not_specialize=["rank", "num_rows"])
@no_type_check
def _two_shot_kernel(
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
    first_mail,  # bytes to the mail; the sums lie behind it
    capacity,
    SIZE: tl.constexpr,
    NORM: tl.constexpr,
    AHEAD: tl.constexpr,
    MAX_PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: every num_programs-th group of rows. Each rank sums one row of a group."""
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    wait_for_inputs(PDL)
    step = tl.load(steps_ptr + program)
    mail = first_mail + step // 2 % 2 * capacity
    sums = mail + 2 * capacity
    num_groups = tl.cdiv(num_rows, SIZE)
    stride = num_groups * size
    sums_ptr = buffer_of(buffers_ptr, rank, sums, bits_of(x_ptr))
    weight = tl.load(weight_ptr + column, mask=column < size, other=0.0).to(tl.float32)[None, :] if NORM else 0.0
    for sent in range(program, num_groups + 2 * AHEAD * num_programs, num_programs):
        _send_parts(x_ptr, buffers_ptr, mail, rank, sent, size, column, num_elements, stride, SIZE)
        summed = sent - AHEAD * num_programs
        if summed >= 0:
            _send_sum(x_ptr, buffers_ptr, mail, sums, rank, summed, size, column, num_elements, stride, SIZE)
        finished = sent - 2 * AHEAD * num_programs
        if finished >= 0:
            for tile in tl.static_range(0, SIZE, TILE_ROWS):
                number = tile + tl.arange(0, TILE_ROWS)[:, None]
                places = (finished * SIZE + number) * size + column[None, :]
                are_places = (number < SIZE) & (column[None, :] < size) & (places < num_elements)
                residual = tl.load(residual_ptr + places, mask=are_places, other=0.0) if NORM else 0.0
                reduced = _taken(sums_ptr, places, are_places, x_ptr.dtype.element_ty)
                finish_rows(reduced, residual, weight, residual_ptr, out_ptr, places, are_places, size, eps, 1, NORM)
    end_launch(steps_ptr, program, num_programs, step, MAX_PROGRAMS)


def two_shot_all_reduce(x: Tensor, memory: SymmetricMemory, config: MailConfig = TWO_SHOT) -> Tensor:
    """Takes CUDA tensors, or any in Triton's interpreter; so do all launchers here."""
    return _summed(plain_rows(x), memory, config)


def two_shot_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, memory: SymmetricMemory, config: MailConfig = TWO_SHOT
) -> tuple[Tensor, Tensor]:
    return _summed(normed_rows(x, residual, weight, eps), memory, config), residual


def _summed(rows: Rows, memory: SymmetricMemory, config: MailConfig) -> Tensor:
    most_groups = memory.capacity // (memory.size * rows.row_bytes)
    at_once = config.of_rows(rows.size)[1] * _ELEMENTS_A_WARP // triton.next_power_of_2(rows.size)
    tile_rows = max(1, min(triton.next_power_of_2(memory.size), at_once))
    for part in rows.in_parts(most_groups * memory.size):
        num_groups = triton.cdiv(part.num_rows, memory.size)
        launch_rows(_two_shot_kernel, part, num_groups, memory, config, TILE_ROWS=tile_rows)
    return rows.out
