"""Forbid tokens with a bitmask made by a grammar (XGrammar, Dong et al. 2024).

    logits[n, t] = -inf      where mask_rows[n] >= 0 and bit t % 32 of bitmask[mask_rows[n], t // 32] is 0

Tensors (N rows, V vocabulary, S masks):
    logits     [N, V]              bf16 or fp32, last stride 1; written in place, allowed tokens keep their bits
    bitmask    [S, ceil(V / 32)]   int32, contiguous: 1 allows. Bits beyond V do not matter
    mask_rows  [N]                 int32: the row's mask; -1: the row may draw anything

Offsets are int64. N may be 0.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

_WORDS = 128  # words of the mask in one program: 4096 tokens


def apply_token_bitmask_reference(logits: Tensor, bitmask: Tensor, mask_rows: Tensor) -> None:
    size = logits.shape[-1]
    rows = (mask_rows >= 0).nonzero().view(-1)
    bits = (bitmask[mask_rows[rows]][:, :, None] >> torch.arange(32, device=logits.device)) & 1
    logits[rows] = logits[rows].masked_fill(bits.flatten(1)[:, :size] == 0, float("-inf"))


@triton.jit(do_not_specialize_on_alignment=["mask_rows_ptr"])
@no_type_check
def _apply_token_bitmask_kernel(
    logits_ptr, bitmask_ptr, mask_rows_ptr, stride_row, size, num_words, WORDS: tl.constexpr
):
    """Program (row, WORDS words of its mask). Allowed logits are written back, so that accesses are wide instead of one
    per token."""
    row = tl.program_id(0).to(tl.int64)
    mask_row = tl.load(mask_rows_ptr + row).to(tl.int64)
    if mask_row < 0:
        return
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    words = tl.load(bitmask_ptr + mask_row * num_words + word, mask=word < num_words, other=-1)
    bit = tl.arange(0, 32)
    token = word[:, None] * 32 + bit[None, :]
    is_forbidden = ((words[:, None] >> bit[None, :]) & 1) == 0
    logits_ptrs = logits_ptr + row * stride_row + token
    logits = tl.load(logits_ptrs, mask=token < size, other=0.0)
    tl.store(logits_ptrs, tl.where(is_forbidden, float("-inf"), logits), mask=token < size)


def apply_token_bitmask_triton(logits: Tensor, bitmask: Tensor, mask_rows: Tensor) -> None:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_rows, size = logits.shape
    num_words = bitmask.shape[1]
    assert logits.stride(-1) == 1 and bitmask.is_contiguous() and num_words == triton.cdiv(size, 32)
    assert bitmask.dtype == mask_rows.dtype == torch.int32
    assert mask_rows.shape == (num_rows,) and mask_rows.is_contiguous()
    if num_rows:
        grid = (num_rows, triton.cdiv(num_words, _WORDS))
        _apply_token_bitmask_kernel[grid](
            logits, bitmask, mask_rows, logits.stride(0), size, num_words, WORDS=_WORDS, num_warps=4
        )


def apply_token_bitmask(logits: Tensor, bitmask: Tensor, mask_rows: Tensor) -> None:
    run = apply_token_bitmask_triton if logits.is_cuda else apply_token_bitmask_reference
    run(logits, bitmask, mask_rows)
