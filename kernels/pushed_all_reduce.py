"""The sum over ranks by values that are their own message: a rank writes them into the others' memory, and whoever
waits for them reads its own memory until they are there. No flag, no fence, and nothing is read over the link.

    out = round(x of rank 0 + x of rank 1 + ...), in fp32 in this order

The same bits on every rank, and those of kernels/one_shot_all_reduce.py, whose references hold here. `..._add_rms_norm`
goes on with what follows in a block: sum = round(out + residual); norm = rms_norm(sum).

    one-shot  every rank writes its x to every other: (R - 1) x over the link, one wait
    two-shot  every rank writes to each other the rows which that one sums, and each writes its sums to all:
              2 (R - 1) / R of x, two waits

Zero says that nothing has come yet: so bits are sent inverted, and of NaNs those whose bits are all ones become another
one. Who has read a value zeroes its place. As TensorRT-LLM has it for few rows ("Lamport"), with negative zeros.

Tensors (N elements; T rows of C):
    x         [...]   bf16 or fp32, contiguous; with add_rms_norm [T, C]. N < 2^31
    residual  [T, C]  like x; consumed: the sum takes its storage
    weight    [C]     like x
    returns   out     like x, new; add_rms_norm: (norm, sum)
memory: kernels/symmetric_memory.py, whose rules hold: all ranks, the same order, one stream, and the same `PushConfig`.
N may be 0. `pushes_one_shot` and `pushes_two_shot` say what has room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import tl, triton
from kernels.symmetric_memory import MAX_PROGRAMS, SymmetricMemory, buffer_of, end_launch, flag_bytes

MAX_NORMED_SIZE = 16384
_FLAT_ROW = 4096  # elements that are a row where nothing is normed
_MULTIPROCESSORS = 128
_REGISTERS = 65536  # of a multiprocessor


@dataclass(frozen=True, slots=True)
class PushConfig:
    """programs: of a launch at most. num_warps: of each. ahead: how many rows (two-shot: of each rank) a program has
    sent before it waits for the first."""

    programs: int
    num_warps: int
    ahead: int


ONE_SHOT = PushConfig(128, 16, 2)
TWO_SHOT = PushConfig(128, 16, 1)


def pushes_one_shot(x: Tensor, memory: SymmetricMemory) -> bool:
    return (memory.size - 1) * x.nbytes <= memory.capacity


def pushes_two_shot(x: Tensor, memory: SymmetricMemory) -> bool:
    row_bytes = (x.shape[-1] if x.dim() > 1 else _FLAT_ROW) * x.itemsize
    return x.nbytes + memory.size * max(row_bytes, _FLAT_ROW * x.itemsize) <= memory.capacity


@triton.jit
@no_type_check
def _sealed(x):
    """As integers that are not zero."""
    bits = x.to(tl.int16 if x.dtype == tl.bfloat16 else tl.int32, bitcast=True)
    inverted = ~bits
    return tl.where(inverted == 0, 1, inverted).to(bits.dtype)


@triton.jit
@no_type_check
def _opened(sealed, dtype: tl.constexpr):
    return (~sealed).to(dtype, bitcast=True)


@triton.jit
@no_type_check
def _send(x_ptr, buffers_ptr, offset, rank, from_place, to_place, is_place, stride, SIZE: tl.constexpr):
    """x to all others: each has a row of `stride` elements for each other rank."""
    bits_ptr = x_ptr.to(tl.pointer_type(tl.int16 if x_ptr.dtype.element_ty == tl.bfloat16 else tl.int32))
    sealed = _sealed(tl.load(x_ptr + from_place, mask=is_place, other=0.0))
    for distance in tl.static_range(1, SIZE):
        peer = (rank + distance) % SIZE
        place = (SIZE - 1 - distance) * stride + to_place
        tl.store(buffer_of(buffers_ptr, peer, offset, bits_ptr) + place, sealed, mask=is_place)


@triton.jit
@no_type_check
def _send_part(x_ptr, buffers_ptr, offset, rank, group, size, num_elements, column, stride, SIZE: tl.constexpr):
    """Of a group of rows, one a rank, each other rank's row to that rank."""
    bits_ptr = x_ptr.to(tl.pointer_type(tl.int16 if x_ptr.dtype.element_ty == tl.bfloat16 else tl.int32))
    for distance in tl.static_range(1, SIZE):
        peer = (rank + distance) % SIZE
        place = (group * SIZE + peer) * size + column
        is_place = (column < size) & (place < num_elements)
        sealed = _sealed(tl.load(x_ptr + place, mask=is_place, other=0.0))
        to_place = (SIZE - 1 - distance) * stride + group * size + column
        tl.store(buffer_of(buffers_ptr, peer, offset, bits_ptr) + to_place, sealed, mask=is_place)


@triton.jit
@no_type_check
def _sum_of_mail(own, buffers_ptr, offset, rank, place, is_place, stride, like_ptr, SIZE: tl.constexpr):
    """Own x and what the others have sent for `place`, in fp32 in the order of ranks. Their places are empty again."""
    bits_ptr = like_ptr.to(tl.pointer_type(tl.int16 if like_ptr.dtype.element_ty == tl.bfloat16 else tl.int32))
    mail_ptr = buffer_of(buffers_ptr, rank, offset, bits_ptr)
    own_sealed = _sealed(own)
    total = own.to(tl.float32)
    is_waiting = 1
    while is_waiting > 0:
        is_missing = tl.zeros(own.shape, tl.int32)
        for peer in tl.static_range(SIZE):
            slot = (peer - rank + SIZE - 1) % SIZE  # SIZE - 1: no slot, own x
            theirs = is_place & (tl.full(own.shape, slot, tl.int32) < SIZE - 1)
            sealed = tl.load(mail_ptr + (slot * stride + place), mask=theirs, other=own_sealed, volatile=True)
            is_missing |= (sealed == 0).to(tl.int32)
            value = _opened(sealed, like_ptr.dtype.element_ty).to(tl.float32)
            total = value if peer == 0 else total + value
        is_waiting = tl.max(is_missing, 0)
    for slot in tl.static_range(SIZE - 1):
        tl.store(mail_ptr + (slot * stride + place), tl.zeros(own.shape, bits_ptr.dtype.element_ty), mask=is_place)
    return total


@triton.jit
@no_type_check
def _finish(
    reduced, residual, weight, residual_ptr, out_ptr, place, is_place, size, eps, AXIS: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """reduced: rounded to the tensors' type already."""
    if NORM:
        added = (reduced.to(tl.float32) + residual.to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + place, added, mask=is_place)
        total = added.to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(total * total, AXIS, keep_dims=True) / size + eps)
        tl.store(out_ptr + place, (total * scale * weight).to(out_ptr.dtype.element_ty), mask=is_place)
    else:
        tl.store(out_ptr + place, reduced, mask=is_place)


@triton.jit(do_not_specialize=["rank", "num_rows"])
@no_type_check
def _pushed_one_shot_kernel(
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
    mail,  # bytes to the mail
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
    offset = mail + step // 2 % 2 * capacity
    weight = tl.load(weight_ptr + column, mask=column < size, other=0.0).to(tl.float32) if NORM else 0.0
    for number in tl.static_range(AHEAD):
        place = (program + number * num_programs) * size + column
        is_place = (column < size) & (place < num_elements)
        _send(x_ptr, buffers_ptr, offset, rank, place, place, is_place, num_elements, SIZE)
    for row in range(program, num_rows, num_programs):
        place = (row + AHEAD * num_programs) * size + column
        is_place = (column < size) & (place < num_elements)
        _send(x_ptr, buffers_ptr, offset, rank, place, place, is_place, num_elements, SIZE)
        place = row * size + column
        is_place = (column < size) & (place < num_elements)
        own = tl.load(x_ptr + place, mask=is_place, other=0.0)
        residual = tl.load(residual_ptr + place, mask=is_place, other=0.0) if NORM else own
        total = _sum_of_mail(own, buffers_ptr, offset, rank, place, is_place, num_elements, x_ptr, SIZE)
        reduced = total.to(x_ptr.dtype.element_ty)
        _finish(reduced, residual, weight, residual_ptr, out_ptr, place, is_place, size, eps, 0, NORM)
    end_launch(steps_ptr, program, num_programs, step, MAX_PROGRAMS)


@triton.jit(do_not_specialize=["rank", "num_rows"])
@no_type_check
def _pushed_two_shot_kernel(
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
    mail,
    capacity,
    SIZE: tl.constexpr,
    NORM: tl.constexpr,
    AHEAD: tl.constexpr,
    MAX_PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: every num_programs-th group of rows, of which each rank sums one."""
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    wait_for_inputs(PDL)
    step = tl.load(steps_ptr + program)
    offset = mail + step // 2 % 2 * capacity
    sums = offset + 2 * capacity
    num_groups = tl.cdiv(num_rows, SIZE)
    stride = num_groups * size
    bits_ptr = x_ptr.to(tl.pointer_type(tl.int16 if x_ptr.dtype.element_ty == tl.bfloat16 else tl.int32))
    sums_ptr = buffer_of(buffers_ptr, rank, sums, bits_ptr)
    weight = tl.load(weight_ptr + column, mask=column < size, other=0.0).to(tl.float32) if NORM else 0.0
    for first in range(program, num_groups + 2 * AHEAD * num_programs, num_programs):
        _send_part(x_ptr, buffers_ptr, offset, rank, first, size, num_elements, column, stride, SIZE)
        summed = first - AHEAD * num_programs
        if summed >= 0:
            at = summed * size + column
            place = (summed * SIZE + rank) * size + column
            is_place = (column < size) & (place < num_elements)
            own = tl.load(x_ptr + place, mask=is_place, other=0.0)
            total = _sum_of_mail(own, buffers_ptr, offset, rank, at, is_place, stride, x_ptr, SIZE)
            sealed = _sealed(total.to(x_ptr.dtype.element_ty))
            for distance in tl.static_range(1, SIZE + 1):
                peer = (rank + distance) % SIZE
                tl.store(buffer_of(buffers_ptr, peer, sums, bits_ptr) + place, sealed, mask=is_place)
        finished = first - 2 * AHEAD * num_programs
        if finished >= 0:
            for tile in tl.static_range(0, SIZE, TILE_ROWS):
                number = tile + tl.arange(0, TILE_ROWS)[:, None]
                places = (finished * SIZE + number) * size + column[None, :]
                are_places = (number < SIZE) & (column[None, :] < size) & (places < num_elements)
                residual = 0.0
                if NORM:
                    residual = tl.load(residual_ptr + places, mask=are_places, other=0.0)
                bits = tl.load(sums_ptr + places, mask=are_places, other=-1, volatile=True)
                while tl.max(tl.max((bits == 0).to(tl.int32), 0), 0) > 0:
                    bits = tl.load(sums_ptr + places, mask=are_places, other=-1, volatile=True)
                tl.store(sums_ptr + places, tl.zeros(places.shape, bits_ptr.dtype.element_ty), mask=are_places)
                reduced = _opened(bits, x_ptr.dtype.element_ty)
                of_columns = weight[None, :] if NORM else 0.0
                _finish(reduced, residual, of_columns, residual_ptr, out_ptr, places, are_places, size, eps, 1, NORM)
    end_launch(steps_ptr, program, num_programs, step, MAX_PROGRAMS)


def pushed_one_shot(x: Tensor, memory: SymmetricMemory, config: PushConfig = ONE_SHOT) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter; so for every launcher here."""
    assert pushes_one_shot(x, memory)
    out = torch.empty_like(x)
    _launch(x, x, x, 0.0, out, memory, config, is_normed=False, is_two_shot=False)
    return out


def pushed_two_shot(x: Tensor, memory: SymmetricMemory, config: PushConfig = TWO_SHOT) -> Tensor:
    assert pushes_two_shot(x, memory)
    out = torch.empty_like(x)
    _launch(x, x, x, 0.0, out, memory, config, is_normed=False, is_two_shot=True)
    return out


def pushed_one_shot_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, memory: SymmetricMemory, config: PushConfig = ONE_SHOT
) -> tuple[Tensor, Tensor]:
    assert pushes_one_shot(x, memory)
    out = torch.empty_like(x)
    _launch(x, residual, weight, eps, out, memory, config, is_normed=True, is_two_shot=False)
    return out, residual


def pushed_two_shot_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, memory: SymmetricMemory, config: PushConfig = TWO_SHOT
) -> tuple[Tensor, Tensor]:
    assert pushes_two_shot(x, memory)
    out = torch.empty_like(x)
    _launch(x, residual, weight, eps, out, memory, config, is_normed=True, is_two_shot=True)
    return out, residual


def _launch(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    memory: SymmetricMemory,
    config: PushConfig,
    *,
    is_normed: bool,
    is_two_shot: bool,
) -> None:
    assert x.is_contiguous() and x.dtype in (torch.bfloat16, torch.float32) and x.numel() < 2**31
    size = x.shape[-1] if is_normed else _FLAT_ROW
    if is_normed:
        assert x.dim() == 2 and size <= MAX_NORMED_SIZE and residual.shape == x.shape and residual.is_contiguous()
        assert weight.shape == (size,) and weight.is_contiguous() and x.dtype == residual.dtype == weight.dtype
    if not x.numel():
        return
    num_rows, block = triton.cdiv(x.numel(), size), triton.next_power_of_2(size)
    num_warps = min(config.num_warps, max(1, block // 128))
    num_tiles = triton.cdiv(num_rows, memory.size) if is_two_shot else num_rows
    programs = min(config.programs, num_tiles)
    at_once = triton.cdiv(programs, _MULTIPROCESSORS)  # of a multiprocessor: all programs are to run at once
    constants = {"TILE_ROWS": max(1, min(triton.next_power_of_2(memory.size), 16384 // block))} if is_two_shot else {}
    kernel = _pushed_two_shot_kernel if is_two_shot else _pushed_one_shot_kernel
    kernel[(programs,)](
        x,
        residual,
        weight,
        out,
        memory.buffers,
        memory.steps,
        x.numel(),
        num_rows,
        size,
        eps,
        memory.rank,
        flag_bytes(memory.size) + 4 * memory.capacity,
        memory.capacity,
        SIZE=memory.size,
        NORM=is_normed,
        AHEAD=config.ahead,
        MAX_PROGRAMS=MAX_PROGRAMS,
        BLOCK=block,
        num_warps=num_warps,
        maxnreg=min(255, _REGISTERS // (32 * num_warps * at_once) // 8 * 8),
        **constants,
        **dependent_launch(x.device),
    )
