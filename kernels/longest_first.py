"""Sequences sorted by context length, longest first: the device runs programs in order, and the last ones should be
short (Graham 1969, longest processing time first).

Tensors (S sequences):
    context_lens  [S]  int32, contiguous
    returns       [S]  int32: the sequences; those of equal length keep their order

A kernel does it, from lengths that only the device reads, as in kernels/split_kv.py.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import tl, triton

_AT_ONE_LOOK = 1024


def longest_first_reference(context_lens: Tensor) -> Tensor:
    return context_lens.argsort(descending=True, stable=True).int()


@triton.jit(do_not_specialize=["num_seqs"], do_not_specialize_on_alignment=["context_lens_ptr"])
@no_type_check
def _longest_first_kernel(context_lens_ptr, order_ptr, num_seqs, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Program: one sequence, whose place it finds."""
    wait_for_inputs(PDL)
    seq = tl.program_id(0)
    length = tl.load(context_lens_ptr + seq)
    place = 0
    for base in range(0, num_seqs, BLOCK):
        others = base + tl.arange(0, BLOCK)
        lens = tl.load(context_lens_ptr + others, mask=others < num_seqs, other=-1)
        place += tl.sum(((lens > length) | ((lens == length) & (others < seq))).to(tl.int32))
    tl.store(order_ptr + place, seq)


def longest_first_triton(context_lens: Tensor, at_one_look: int = _AT_ONE_LOOK) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter."""
    (num_seqs,) = context_lens.shape
    assert context_lens.dtype == torch.int32 and context_lens.is_contiguous()
    order = torch.empty_like(context_lens)
    if num_seqs:
        block = min(at_one_look, triton.next_power_of_2(num_seqs))
        warps = 1 if block <= 128 else 4
        _longest_first_kernel[(num_seqs,)](
            context_lens, order, num_seqs, BLOCK=block, num_warps=warps, **dependent_launch(context_lens.device)
        )
    return order
