"""Argmax over the vocabulary: the whole of sampling at temperature 0.

    out[n] = the lowest t with logits[n, t] = max(logits[n]);  -1 if that maximum is not finite

(a NaN or +inf in the row, or only -inf). Same result as sample_tokens with temperature 0.

Tensors (N rows, V vocabulary):
    logits   [N, V]  bf16 or fp32, last stride 1; read only
    returns  [N]     int64, new

N may be 0. V < 2^31.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.cpu_loops import loops_for
from kernels.group_max import GROUP, group_max_triton
from kernels.optional_triton import tl, triton


def greedy_tokens_reference(logits: Tensor) -> Tensor:
    largest, ids = logits.max(dim=-1)
    return torch.where(largest.isfinite(), ids, -1)


@triton.jit
@no_type_check
def first_largest(logits_row_ptr, maxima_row_ptr, size, num_groups, GROUP: tl.constexpr, BLOCK_GROUPS: tl.constexpr):
    """The lowest id of the largest logit as int64, or -1; for one program's row. maxima: from kernels/group_max.py."""
    group = tl.arange(0, BLOCK_GROUPS)
    maxima = tl.load(maxima_row_ptr + group, mask=group < num_groups, other=float("-inf"))
    largest = tl.max(maxima, 0)
    first_group = tl.min(tl.where(maxima == largest, group, BLOCK_GROUPS), 0)
    token = first_group * GROUP + tl.arange(0, GROUP)
    logits = tl.load(logits_row_ptr + token, mask=token < size, other=float("-inf")).to(tl.float32)
    first = tl.min(tl.where(logits == largest, token, size), 0)
    is_finite = (largest > float("-inf")) & (largest < float("inf"))
    return tl.where(is_finite, first, -1).to(tl.int64)


@triton.jit
@no_type_check
def _greedy_tokens_kernel(
    logits_ptr, maxima_ptr, out_ptr, stride_row, size, num_groups, GROUP: tl.constexpr, BLOCK_GROUPS: tl.constexpr
):
    """Program: one row."""
    row = tl.program_id(0).to(tl.int64)
    logits_row_ptr, maxima_row_ptr = logits_ptr + row * stride_row, maxima_ptr + row * num_groups
    token = first_largest(logits_row_ptr, maxima_row_ptr, size, num_groups, GROUP, BLOCK_GROUPS)
    tl.store(out_ptr + row, token)


def greedy_tokens_triton(logits: Tensor) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. Two launches: every group's maximum, then each row's."""
    num_rows, size = logits.shape
    assert logits.stride(-1) == 1 and 0 < size < 2**31
    maxima = group_max_triton(logits)
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        num_groups = maxima.shape[1]
        _greedy_tokens_kernel[(num_rows,)](
            logits,
            maxima,
            out,
            logits.stride(0),
            size,
            num_groups,
            GROUP=GROUP,
            BLOCK_GROUPS=triton.next_power_of_2(num_groups),
            num_warps=4,
        )
    return out


def greedy_tokens(logits: Tensor) -> Tensor:
    assert logits.stride(-1) == 1 and logits.shape[-1] < 2**31
    if logits.is_cuda:
        return greedy_tokens_triton(logits)
    loops = loops_for(logits)
    return greedy_tokens_reference(logits) if loops is None else loops.greedy_tokens(logits)
