"""Add biases that requests ask for to single logits (OpenAI's logit_bias).

    logits[rows[i], token_ids[i]] += values[i]      where rows[i] >= 0

Tensors (N rows, V vocabulary, E entries of all rows together):
    logits     [N, V]  bf16 or fp32, last stride 1; written in place
    rows       [E]     int32; -1: no entry (padding)
    token_ids  [E]     int32, below V. No (row, token) pair occurs twice
    values     [E]     fp32

Rounding: fp32, rounded once when written. Offsets are int64. E may be 0.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

_BLOCK = 128


def apply_logit_bias_reference(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> None:
    kept = (rows >= 0).nonzero().view(-1)
    cells = rows[kept], token_ids[kept]
    logits[cells] = (logits[cells].float() + values[kept]).to(logits.dtype)


@triton.jit(
    do_not_specialize=["num_entries"],
    do_not_specialize_on_alignment=["rows_ptr", "token_ids_ptr", "values_ptr"],
)
@no_type_check
def _apply_logit_bias_kernel(
    logits_ptr, rows_ptr, token_ids_ptr, values_ptr, stride_row, num_entries, BLOCK: tl.constexpr
):
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.load(rows_ptr + entry, mask=entry < num_entries, other=-1).to(tl.int64)
    token_ids = tl.load(token_ids_ptr + entry, mask=entry < num_entries, other=0)
    values = tl.load(values_ptr + entry, mask=entry < num_entries, other=0.0)
    logits_ptrs = logits_ptr + rows * stride_row + token_ids
    logits = tl.load(logits_ptrs, mask=rows >= 0, other=0.0).to(tl.float32)
    tl.store(logits_ptrs, (logits + values).to(logits_ptr.dtype.element_ty), mask=rows >= 0)


def apply_logit_bias_triton(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> None:
    """On CUDA tensors, or on any in Triton's interpreter."""
    assert logits.stride(-1) == 1 and rows.dtype == token_ids.dtype == torch.int32 and values.dtype == torch.float32
    assert rows.shape == token_ids.shape == values.shape and rows.dim() == 1
    assert rows.is_contiguous() and token_ids.is_contiguous() and values.is_contiguous()
    if len(rows):
        grid = (triton.cdiv(len(rows), _BLOCK),)
        _apply_logit_bias_kernel[grid](
            logits, rows, token_ids, values, logits.stride(0), len(rows), BLOCK=_BLOCK, num_warps=4
        )


def apply_logit_bias(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> None:
    run = apply_logit_bias_triton if logits.is_cuda else apply_logit_bias_reference
    run(logits, rows, token_ids, values)
