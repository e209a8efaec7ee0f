"""Draws one id per row of logits: the argmax, or a sample from the filtered distribution.

Order, per row:
    1. the largest logit is not finite (a NaN, +inf, or only -inf in the row): the result is -1
    2. temperature 0: argmax of the logits, the lowest id if equal; nothing below applies
    3. x = (logits - largest) / temperature
    4. top-k (top_k > 0): drop every token whose x is smaller than the k-th largest; ties with it stay
    5. min-p (min_p > 0): drop every token that is less than min_p times as probable as the best: x < log(min_p)
    6. top-p (top_p < 1): of the rest, renormalised, drop a token if the strictly more probable ones already
       hold top_p of the mass; the token that crosses top_p stays, and so do ties with it. The best always stays.
    7. Gumbel-max: argmax of x + g, the lowest id if equal, with g[t] = -log(-log1p(-u[t]))

u is stateless: u[t] = uniform(word t % 4 of philox_4x32(counter = (t // 4, position low, position high, 0),
key = (seed low, seed high))). So a draw depends on (logits, parameters, seed, position) and never on the rest of the
batch.

Tensors (N rows, V vocabulary):
    logits       [N, V]  bf16 or fp32, last stride 1; read only. -inf forbids a token.
    temperature  [N]     fp32, >= 0
    top_k        [N]     int32; 0 (or >= V) keeps all
    top_p        [N]     fp32, in (0, 1]; 1 keeps all
    min_p        [N]     fp32, in [0, 1]; 0 keeps all. None: 0 for every row
    seeds        [N]     int64
    positions    [N]     int64: index of the new token in its sequence
    returns      [N]     int64, new; -1 for a row that cannot be drawn from

Rounding: fp32 throughout. The Philox words agree bit for bit. Two backends may differ in the last bit of x, of a
logarithm or of a sum, and so in a draw whose two best scores (or whose mass at the top-p border) agree to one part in
10^6. N may be 0. V < 2^31.

Four launches: every group's maximum (group_max.py), the filters' border (filter_border.py, steps 3 to 6), every chunk's
best score (gumbel_argmax.py, step 7), and each row's choice.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
from torch import Tensor

from kernels.filter_border import filter_border_reference, filter_border_triton
from kernels.greedy_tokens import first_largest
from kernels.group_max import GROUP, group_max_triton
from kernels.gumbel_argmax import gumbel_argmax_reference, gumbel_argmax_triton
from kernels.optional_triton import tl, triton

INVALID_TOKEN_ID = -1


def sample_tokens_reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    min_p: Tensor | None = None,
) -> Tensor:
    largest, ids = logits.max(dim=-1)
    rows = (temperature > 0).nonzero().view(-1)
    if rows.numel():
        centred = logits[rows].float() - largest[rows, None].float()
        x = centred / temperature[rows, None]
        border = filter_border_reference(x, top_k[rows], top_p[rows], None if min_p is None else min_p[rows])
        if bool((border > -math.inf).any()):
            x.masked_fill_(x < border[:, None], -math.inf)
        ids[rows] = gumbel_argmax_reference(x, seeds[rows], positions[rows])
    return torch.where(largest.isfinite(), ids, INVALID_TOKEN_ID)


@triton.jit(do_not_specialize_on_alignment=["temperature_ptr", "largest_ptr"])
@no_type_check
def _choose_kernel(
    logits_ptr,
    maxima_ptr,
    temperature_ptr,
    largest_ptr,
    best_score_ptr,
    best_token_ptr,
    out_ptr,
    stride_row,
    size,
    num_groups,
    num_chunks,
    GROUP: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """Program: one row."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.load(largest_ptr + row)
    is_finite = (largest > float("-inf")) & (largest < float("inf"))
    if (tl.load(temperature_ptr + row) > 0) & is_finite:
        chunk = tl.arange(0, BLOCK_CHUNKS)
        slot = row * num_chunks + chunk
        scores = tl.load(best_score_ptr + slot, mask=chunk < num_chunks, other=float("-inf"))
        tokens = tl.load(best_token_ptr + slot, mask=chunk < num_chunks, other=size)
        best = tl.max(scores, 0)
        tl.store(out_ptr + row, tl.min(tl.where(scores == best, tokens, size), 0).to(tl.int64))
    else:
        logits_row_ptr, maxima_row_ptr = logits_ptr + row * stride_row, maxima_ptr + row * num_groups
        tl.store(out_ptr + row, first_largest(logits_row_ptr, maxima_row_ptr, size, num_groups, GROUP, BLOCK_GROUPS))


def sample_tokens_triton(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    min_p: Tensor | None = None,
) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter. Four launches: group maxima, borders, noise, choice."""
    num_rows, size = logits.shape
    assert logits.stride(-1) == 1 and 0 < size < 2**31 - GROUP and logits.dtype in (torch.bfloat16, torch.float32)
    assert temperature.dtype == top_p.dtype == torch.float32 and top_k.dtype == torch.int32
    assert seeds.dtype == positions.dtype == torch.int64
    parameters = [temperature, top_k, top_p, seeds, positions, *([] if min_p is None else [min_p])]
    assert all(t.shape == (num_rows,) and t.is_contiguous() for t in parameters)
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return out
    maxima = group_max_triton(logits)
    largest, border = filter_border_triton(logits, maxima, temperature, top_k, top_p, min_p)
    score, token = gumbel_argmax_triton(logits, maxima, largest, border, temperature, seeds, positions)
    num_groups, num_chunks = maxima.shape[1], score.shape[1]
    _choose_kernel[(num_rows,)](
        logits,
        maxima,
        temperature,
        largest,
        score,
        token,
        out,
        logits.stride(0),
        size,
        num_groups,
        num_chunks,
        GROUP=GROUP,
        BLOCK_GROUPS=triton.next_power_of_2(num_groups),
        BLOCK_CHUNKS=triton.next_power_of_2(num_chunks),
        num_warps=4,
    )
    return out


def sample_tokens(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    min_p: Tensor | None = None,
) -> Tensor:
    num_rows = logits.shape[0]
    if logits.is_cuda:
        return sample_tokens_triton(logits, temperature, top_k, top_p, seeds, positions, min_p)
    assert logits.stride(-1) == 1 and logits.shape[-1] < 2**31
    assert temperature.dtype == top_p.dtype == torch.float32 and top_k.dtype == torch.int32
    assert seeds.dtype == positions.dtype == torch.int64
    assert all(t.shape == (num_rows,) for t in (temperature, top_k, top_p, seeds, positions))
    return sample_tokens_reference(logits, temperature, top_k, top_p, seeds, positions, min_p)
