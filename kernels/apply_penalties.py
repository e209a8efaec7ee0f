"""Penalties on the logits of tokens that a sequence already has, and the token counts that they need.

    apply_penalties, for every row with slots[n] >= 0 and token t, c = token_counts[slots[n], t], g = c // 2:
        1. repetition (Keskar et al. 2019), if c > 0: logit / repetition where it is positive, else logit * repetition
        2. frequency and presence (OpenAI's): logit - frequency * g - presence * (g > 0)
    count_tokens:  token_counts[slots[n], token_ids[n]] += 2    where slots[n] >= 0 and token_ids[n] >= 0

Tensors (N rows, V vocabulary, S slots):
    logits        [N, V]  bf16 or fp32, last stride 1; written in place where a penalty applies
    token_counts  [S, V]  int32, contiguous: 2 * (times generated) + (1 if it is in the prompt). A sequence's slot
                          begins as zeros, with 1 at its prompt's ids. count_tokens writes it in place
    slots         [N]     int32; -1: the row has no penalties (or is padding). For count_tokens no slot twice
    token_ids     [N]     int64; -1 is not counted
    repetition    [N]     fp32, > 0; 1 for none
    presence      [N]     fp32; 0 for none
    frequency     [N]     fp32; 0 for none

Rounding: fp32, rounded once when written; a token that was never seen keeps its bits. Offsets are int64. N may be 0.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

_BLOCK = 2048
_ROWS = 128  # rows that one program of count_tokens counts


def apply_penalties_reference(
    logits: Tensor, token_counts: Tensor, slots: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> None:
    rows = (slots >= 0).nonzero().view(-1)
    counts = token_counts[slots[rows]]
    generated = counts // 2
    exact = logits[rows].float()
    factor = torch.where(counts > 0, repetition[rows, None], 1)
    exact = torch.where(exact > 0, exact / factor, exact * factor)
    exact = exact - frequency[rows, None] * generated - presence[rows, None] * (generated > 0)
    logits[rows] = torch.where(counts > 0, exact.to(logits.dtype), logits[rows])


def count_tokens_reference(token_counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    rows = ((slots >= 0) & (token_ids >= 0)).nonzero().view(-1)
    token_counts[slots[rows], token_ids[rows]] += 2


@triton.jit(
    do_not_specialize_on_alignment=["slots_ptr", "repetition_ptr", "presence_ptr", "frequency_ptr"],
)
@no_type_check
def _apply_penalties_kernel(
    logits_ptr,
    token_counts_ptr,
    slots_ptr,
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    stride_row,
    size,
    BLOCK: tl.constexpr,
):
    """Program (row, piece of the row)."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.load(token_counts_ptr + slot * size + token, mask=token < size, other=0)
    if tl.max(counts, 0) == 0:  # most pieces of a vocabulary hold no seen token: their logits need not be read
        return
    is_seen = counts > 0
    generated = counts >> 1
    repetition = tl.load(repetition_ptr + row)
    # All of the piece is read and written: wide accesses, where single tokens would each take an instruction.
    logits_ptrs = logits_ptr + row * stride_row + token
    logits = tl.load(logits_ptrs, mask=token < size, other=0.0)
    exact = logits.to(tl.float32)
    exact = tl.where(exact > 0, exact / repetition, exact * repetition)
    exact -= tl.load(frequency_ptr + row) * generated.to(tl.float32)
    exact -= tl.where(generated > 0, tl.load(presence_ptr + row), 0.0)
    tl.store(logits_ptrs, tl.where(is_seen, exact.to(logits_ptr.dtype.element_ty), logits), mask=token < size)


@triton.jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["slots_ptr", "token_ids_ptr"],
)
@no_type_check
def _count_tokens_kernel(token_counts_ptr, slots_ptr, token_ids_ptr, num_rows, size, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slots = tl.load(slots_ptr + row, mask=row < num_rows, other=-1).to(tl.int64)
    token_ids = tl.load(token_ids_ptr + row, mask=row < num_rows, other=-1)
    is_counted = (slots >= 0) & (token_ids >= 0)
    count_ptrs = token_counts_ptr + slots * size + token_ids
    counts = tl.load(count_ptrs, mask=is_counted, other=0)
    tl.store(count_ptrs, counts + 2, mask=is_counted)


def apply_penalties_triton(
    logits: Tensor, token_counts: Tensor, slots: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> None:
    """On CUDA tensors, or on any in Triton's interpreter; so for every `_triton` here."""
    num_rows, size = logits.shape
    assert logits.stride(-1) == 1 and token_counts.is_contiguous() and token_counts.shape[1] == size
    assert token_counts.dtype == slots.dtype == torch.int32
    assert repetition.dtype == presence.dtype == frequency.dtype == torch.float32
    assert all(t.shape == (num_rows,) and t.is_contiguous() for t in (slots, repetition, presence, frequency))
    if num_rows:
        grid = (num_rows, triton.cdiv(size, _BLOCK))
        _apply_penalties_kernel[grid](
            logits,
            token_counts,
            slots,
            repetition,
            presence,
            frequency,
            logits.stride(0),
            size,
            BLOCK=_BLOCK,
            num_warps=4,
        )


def count_tokens_triton(token_counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    num_rows, size = len(slots), token_counts.shape[1]
    assert token_counts.is_contiguous() and token_counts.dtype == slots.dtype == torch.int32
    assert token_ids.dtype == torch.int64 and token_ids.shape == slots.shape
    assert slots.is_contiguous() and token_ids.is_contiguous()
    if num_rows:
        grid = (triton.cdiv(num_rows, _ROWS),)
        _count_tokens_kernel[grid](token_counts, slots, token_ids, num_rows, size, BLOCK=_ROWS, num_warps=4)


def apply_penalties(
    logits: Tensor, token_counts: Tensor, slots: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> None:
    run = apply_penalties_triton if logits.is_cuda else apply_penalties_reference
    run(logits, token_counts, slots, repetition, presence, frequency)


def count_tokens(token_counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    run = count_tokens_triton if token_counts.is_cuda else count_tokens_reference
    run(token_counts, slots, token_ids)
