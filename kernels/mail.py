"""Exchange without flags: a rank writes values into the other ranks' memory, and a receiver polls its own memory until
they have arrived. No flag, no fence, no read over the link. TensorRT-LLM's "Lamport" all-reduce does the same.

Zero means "not arrived", so values are sent with inverted bits ("sealed"), and a receiver resets each place to zero
after reading it. (A NaN whose bits are all ones arrives as another NaN.) Loads are 16 bytes wide and check each
element, since the elements may arrive separately.

The building blocks of both all-reduces (one_shot_all_reduce.py, two_shot_all_reduce.py), for bf16 and fp32 tensors as
rows of C elements. A receiver's mail has one slot for each other rank; sums that are sent back have their own place,
`sums`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch
from kernels.optional_triton import tl, triton
from kernels.symmetric_memory import MAX_PROGRAMS, SymmetricMemory, buffer_of, mail_offset

MAX_NORMED_SIZE = 16384
_FLAT_ROW = 4096  # elements of a row if there is no norm
_MULTIPROCESSORS = 128  # of the smallest GPU with such a link
_REGISTERS = 65536  # of a multiprocessor
_ROW = 4096  # elements of a row that configs are for
_MOST_WARPS = 16
_FEWEST_ELEMENTS = 256  # of a row, a warp: 16 bytes a thread in bf16


@dataclass(frozen=True, slots=True)
class MailConfig:
    """For rows of up to 4096 elements; longer rows take more warps and fewer programs. programs: most of a launch.
    num_warps: of each program. ahead: rows (two-shot: rows of each rank) that a program sends before it waits for the
    first."""

    programs: int
    num_warps: int
    ahead: int

    def of_rows(self, size: int) -> tuple[int, int]:
        """(programs, num_warps)."""
        block = triton.next_power_of_2(size)
        if block <= _ROW:
            return self.programs, min(self.num_warps, max(1, block // _FEWEST_ELEMENTS))
        num_warps = min(_MOST_WARPS, self.num_warps * block // _ROW)
        return max(1, self.programs * self.num_warps // num_warps), num_warps


@triton.jit
@no_type_check
def bits_of(ptr):
    """The same pointer, to integers of the element's size."""
    return ptr.to(tl.pointer_type(tl.int16 if ptr.dtype.element_ty == tl.bfloat16 else tl.int32))


@triton.jit
@no_type_check
def sealed(x):
    """x as integers that are never zero."""
    bits = x.to(tl.int16 if x.dtype == tl.bfloat16 else tl.int32, bitcast=True)
    inverted = ~bits
    return tl.where(inverted == 0, 1, inverted).to(bits.dtype)


@triton.jit
@no_type_check
def opened(bits, dtype: tl.constexpr):
    return (~bits).to(dtype, bitcast=True)


@triton.jit
@no_type_check
def slot_after(distance, SIZE: tl.constexpr):
    """The sender's slot in the mail of the rank that is `distance` (from 1) after it in the ring of ranks."""
    return SIZE - 1 - distance


@triton.jit
@no_type_check
def sum_of_mail(own, buffers_ptr, mail, rank, place, is_place, stride, like_ptr, SIZE: tl.constexpr):
    """Wait for what the others send for `place`, then sum it and the own x in fp32 in rank order. mail: byte offset of
    the mail. stride: elements of a slot."""
    mail_ptr = buffer_of(buffers_ptr, rank, mail, bits_of(like_ptr))
    own_bits = sealed(own)
    total = own.to(tl.float32)
    is_waiting = 1
    while is_waiting > 0:
        is_missing = tl.zeros(own.shape, tl.int32)
        for peer in tl.static_range(SIZE):
            slot = (peer - rank + SIZE - 1) % SIZE  # SIZE - 1: there is none, but own x
            is_theirs = is_place & (tl.full(own.shape, slot, tl.int32) < SIZE - 1)
            bits = tl.load(mail_ptr + (slot * stride + place), mask=is_theirs, other=own_bits, volatile=True)
            is_missing |= (bits == 0).to(tl.int32)
            value = opened(bits, like_ptr.dtype.element_ty).to(tl.float32)
            total = value if peer == 0 else total + value
        is_waiting = tl.max(is_missing, 0)
    for slot in tl.static_range(SIZE - 1):
        tl.store(mail_ptr + (slot * stride + place), tl.zeros(own.shape, own_bits.dtype), mask=is_place)
    return total


@triton.jit
@no_type_check
def finish_rows(
    reduced, residual, weight, residual_ptr, out_ptr, place, is_place, size, eps, AXIS: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """reduced: the rounded sum over ranks. AXIS: the axis along a row."""
    if NORM:
        added = (reduced.to(tl.float32) + residual.to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + place, added, mask=is_place)
        total = added.to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(total * total, AXIS, keep_dims=True) / size + eps)
        tl.store(out_ptr + place, (total * scale * weight).to(out_ptr.dtype.element_ty), mask=is_place)
    else:
        tl.store(out_ptr + place, reduced, mask=is_place)


@dataclass(frozen=True, slots=True)
class Rows:
    """The operands of an all-reduce: rows of `size` elements; the last may be shorter. residual and weight: any tensors
    if there is no norm."""

    x: Tensor
    residual: Tensor
    weight: Tensor
    out: Tensor
    size: int
    eps: float
    is_normed: bool

    @property
    def num_rows(self) -> int:
        return -(-self.x.numel() // self.size)

    @property
    def row_bytes(self) -> int:
        return self.size * self.x.itemsize

    def in_parts(self, most_rows: int) -> Iterator[Rows]:
        """Parts of at most so many rows, one launch each."""
        assert most_rows, "not even one row has room"
        if 0 < self.num_rows <= most_rows:
            yield self
            return
        num_elements = most_rows * self.size
        tensors = [each.view(-1) for each in (self.x, self.residual, self.out)]
        for first in range(0, self.x.numel(), num_elements):
            x, residual, out = (each[first : first + num_elements] for each in tensors)
            yield Rows(x, residual, self.weight, out, self.size, self.eps, self.is_normed)


def plain_rows(x: Tensor) -> Rows:
    _check(x)
    return Rows(x, x, x, torch.empty_like(x), _FLAT_ROW, 0.0, is_normed=False)


def normed_rows(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Rows:
    _check(x)
    size = x.shape[1]
    assert size <= MAX_NORMED_SIZE and weight.shape == (size,) and weight.is_contiguous()
    assert residual.shape == x.shape and residual.is_contiguous() and x.dtype == residual.dtype == weight.dtype
    return Rows(x, residual, weight, torch.empty_like(x), size, eps, is_normed=True)


def _check(x: Tensor) -> None:
    assert x.is_contiguous() and x.dtype in (torch.bfloat16, torch.float32) and x.numel() < 2**31


def launch_rows(
    kernel: Any, rows: Rows, num_tiles: int, memory: SymmetricMemory, config: MailConfig, **constants: int
) -> None:
    """Program p takes the tiles p, p + num_programs, ... of num_tiles."""
    most_programs, num_warps = config.of_rows(rows.size)
    programs = min(most_programs, num_tiles)
    beside = triton.cdiv(programs, _MULTIPROCESSORS)  # per multiprocessor: all programs must run at once
    kernel[(programs,)](
        rows.x,
        rows.residual,
        rows.weight,
        rows.out,
        memory.buffers,
        memory.steps,
        rows.x.numel(),
        rows.num_rows,
        rows.size,
        rows.eps,
        memory.rank,
        mail_offset(memory.size),
        memory.capacity,
        SIZE=memory.size,
        NORM=rows.is_normed,
        AHEAD=config.ahead,
        MAX_PROGRAMS=MAX_PROGRAMS,
        BLOCK=triton.next_power_of_2(rows.size),
        num_warps=num_warps,
        maxnreg=min(255, _REGISTERS // (32 * num_warps * beside) // 8 * 8),
        **constants,
        **dependent_launch(rows.x.device),
    )
