"""Fills in the ids that sequences drew last, for tokens that the host does not know yet (overlapped scheduling).

    token_ids[d] = max(drawn[rows[d]], 0)   where token_ids[d] < 0;  other tokens stay, in place

A failed draw left -1. Its sequence is about to end, so any valid id will do.

Tensors (T tokens, the first D of them decodes, R rows):
    token_ids  [T]  int64, contiguous; D <= T
    rows       [D]  int64: the row of each decode's sequence, in 0 .. R - 1
    drawn      [R]  int64, contiguous

D may be 0.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

BLOCK = 256


def fill_pending_tokens_reference(token_ids: Tensor, rows: Tensor, drawn: Tensor) -> None:
    decodes = token_ids[: len(rows)]
    decodes.copy_(torch.where(decodes < 0, drawn[rows].clamp_min(0), decodes))


@triton.jit(do_not_specialize=["num_decodes"], do_not_specialize_on_alignment=["token_ids_ptr", "rows_ptr"])
@no_type_check
def _fill_pending_tokens_kernel(token_ids_ptr, rows_ptr, drawn_ptr, num_decodes, BLOCK: tl.constexpr):
    """Program: BLOCK decodes."""
    decode = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_decode = decode < num_decodes
    is_pending = is_decode & (tl.load(token_ids_ptr + decode, mask=is_decode, other=0) < 0)
    row = tl.load(rows_ptr + decode, mask=is_pending, other=0)
    drawn = tl.load(drawn_ptr + row, mask=is_pending, other=0)
    tl.store(token_ids_ptr + decode, tl.maximum(drawn, 0), mask=is_pending)


def fill_pending_tokens_triton(token_ids: Tensor, rows: Tensor, drawn: Tensor) -> None:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_decodes = rows.shape[0]
    if num_decodes:
        grid = (triton.cdiv(num_decodes, BLOCK),)
        _fill_pending_tokens_kernel[grid](token_ids, rows, drawn, num_decodes, BLOCK=BLOCK, num_warps=4)


def fill_pending_tokens(token_ids: Tensor, rows: Tensor, drawn: Tensor) -> None:
    assert token_ids.dtype == rows.dtype == drawn.dtype == torch.int64
    assert token_ids.is_contiguous() and rows.is_contiguous() and drawn.is_contiguous()
    assert rows.shape[0] <= token_ids.shape[0]
    fill = fill_pending_tokens_triton if token_ids.is_cuda else fill_pending_tokens_reference
    fill(token_ids, rows, drawn)
