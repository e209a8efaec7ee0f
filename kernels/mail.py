"""Values that are their own message: a rank writes them into the others' memory, and whoever waits for them reads its
own memory until they are there. No flag, no fence, and nothing is read over the link.

Zero says that nothing has come yet, and whoever has read a value makes its place zero again. So bits are sent inverted
("sealed"); of NaNs, those whose bits are all ones arrive as another NaN. As TensorRT-LLM has it ("Lamport"), there with
negative zeros. 16 bytes at once, of which each element is looked at: they need not come together.

What both ways of summing are made of (kernels/one_shot_all_reduce.py, two_shot_all_reduce.py), of tensors in bf16 or
fp32 as rows of C elements. A receiver's mail has a slot for every other rank; what is sent again has a place of its own
in `sums`.
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
_FLAT_ROW = 4096  # elements that are a row where nothing is normed
_MULTIPROCESSORS = 128  # or more, of any GPU that has such memory
_REGISTERS = 65536  # of a multiprocessor
_ROW = 4096  # elements, of which a config is given
_MOST_WARPS = 16
_FEWEST_ELEMENTS = 256  # of a row, a warp: 16 bytes a thread in bf16


@dataclass(frozen=True, slots=True)
class MailConfig:
    """Of rows of up to 4096 elements; longer ones take more warps and fewer programs. programs: of a launch at most.
    num_warps: of each. ahead: how many rows (two-shot: of each rank) a program has sent before it waits for the
    first. is_beside: kernels of another stream run beside the launch, which therefore follows no kernel closely
    (kernels/dependent_launch.py)."""

    programs: int
    num_warps: int
    ahead: int
    is_beside: bool = False

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
    """The pointer, to integers."""
    return ptr.to(tl.pointer_type(tl.int16 if ptr.dtype.element_ty == tl.bfloat16 else tl.int32))


@triton.jit
@no_type_check
def sealed(x):
    """As integers that are not zero."""
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
    """Where a rank lies in the mail of the one that comes `distance` after it in the circle of ranks, from 1."""
    return SIZE - 1 - distance


@triton.jit
@no_type_check
def sum_of_mail(own, buffers_ptr, mail, rank, place, is_place, stride, like_ptr, SIZE: tl.constexpr):
    """Own x and what the others have sent for `place`, in fp32 in the order of ranks, once all is there. mail: bytes to
    it. stride: elements of a slot."""
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
    """reduced: the sum over ranks, rounded. AXIS: of a row's elements."""
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
    """What is summed and what it goes on with: rows of `size` elements, of which the last may be shorter. residual and
    weight: any tensors where nothing is normed."""

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
        """Of so many rows at most, for a launch each."""
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
    """num_tiles: of which each program takes every num_programs-th."""
    most_programs, num_warps = config.of_rows(rows.size)
    programs = min(most_programs, num_tiles)
    beside = triton.cdiv(programs, _MULTIPROCESSORS)  # on a multiprocessor: all programs are to run at once
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
        **({"PDL": False} if config.is_beside else dependent_launch(rows.x.device)),
    )
