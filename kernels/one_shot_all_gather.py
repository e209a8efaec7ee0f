"""All-gather in one exchange, for small tensors, where latency is all that counts.

    out[r] = x of rank r

Uses kernels/symmetric_memory.py, whose rules hold: all ranks, in the same order, on one stream.

Tensors:
    x        [...]         any dtype, contiguous, 16-byte aligned; its size in bytes is a multiple of 4 and at
                           most INPUT_BYTES
    returns  [ranks, ...]  like x, new
x may be empty.

The reference takes `parts`, every rank's x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import tl, triton
from kernels.symmetric_memory import (
    INPUT_BYTES,
    MAX_PROGRAMS,
    SymmetricMemory,
    buffer_of,
    end_launch,
    flag_bytes,
    wait_for_ranks,
)

_PROGRAMS = 64
_BLOCK = 1024  # words per step: 8 warps, one 16-byte load per thread


def one_shot_all_gather_reference(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts))


@triton.jit(do_not_specialize=["rank"])
@no_type_check
def _one_shot_all_gather_kernel(
    x_ptr,
    out_ptr,
    buffers_ptr,
    steps_ptr,
    size,  # words
    rank,
    inputs,  # offset of the inputs in bytes
    half,  # bytes of one half: launches alternate
    SIZE: tl.constexpr,
    MAX_PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: every num_programs-th block of words."""
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    wait_for_inputs(PDL)
    step = tl.load(steps_ptr + program)
    offset = inputs + step // 2 % 2 * half
    own_ptr = buffer_of(buffers_ptr, rank, offset, x_ptr)
    for first in range(program * BLOCK, size, num_programs * BLOCK):
        place = first + tl.arange(0, BLOCK)
        tl.store(own_ptr + place, tl.load(x_ptr + place, mask=place < size), mask=place < size)
    wait_for_ranks(buffers_ptr, steps_ptr, rank, program, step + 1, SIZE)
    for first in range(program * BLOCK, size, num_programs * BLOCK):
        place = first + tl.arange(0, BLOCK)
        for peer in tl.static_range(SIZE):
            theirs = tl.load(buffer_of(buffers_ptr, peer, offset, x_ptr) + place, mask=place < size)
            tl.store(out_ptr + peer * size + place, theirs, mask=place < size)
    end_launch(steps_ptr, program, num_programs, step, MAX_PROGRAMS)


def one_shot_all_gather(x: Tensor, memory: SymmetricMemory) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter."""
    assert x.is_contiguous() and x.data_ptr() % 16 == 0
    assert x.nbytes % 4 == 0 and x.nbytes <= INPUT_BYTES and memory.size * x.nbytes < 2**33
    out = x.new_empty(memory.size, *x.shape)
    num_words = x.nbytes // 4
    if num_words:
        _one_shot_all_gather_kernel[(min(_PROGRAMS, triton.cdiv(num_words, _BLOCK)),)](
            _words(x),
            _words(out),
            memory.buffers,
            memory.steps,
            num_words,
            memory.rank,
            flag_bytes(memory.size),
            INPUT_BYTES,
            SIZE=memory.size,
            MAX_PROGRAMS=MAX_PROGRAMS,
            BLOCK=_BLOCK,
            num_warps=8,
            **dependent_launch(x.device),
        )
    return out


def _words(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.int32)
