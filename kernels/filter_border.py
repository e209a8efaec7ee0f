"""Where top-k, min-p and top-p cut: the smallest score that stays in each row's distribution.

x = (logits - largest) / temperature; every token below the row's border is dropped, in this order:
    top-k (0 < top_k < V): smaller than the k-th largest; ties with it stay
    min-p (min_p > 0): less than min_p times as probable as the best: x < log(min_p)
    top-p (top_p < 1): of the rest, renormalised: the strictly more probable tokens already hold top_p of the mass;
        the token that crosses top_p stays, and so do ties with it. The best always stays.
    border[n] = the smallest x that stays;  -inf if no filter is on

Tensors (N rows, V vocabulary, G groups of 128 tokens):
    logits       [N, V]  bf16 or fp32, last stride 1; read only. -inf forbids a token.
    maxima       [N, G]  fp32, from kernels/group_max.py
    temperature  [N]     fp32
    top_k        [N]     int32; 0 (or >= V) keeps all
    top_p        [N]     fp32, in (0, 1]; 1 keeps all
    min_p        [N]     fp32, in [0, 1]; 0 keeps all. None: 0 for every row
    returns largest, border  [N] fp32, new. border is written only for rows to draw from: not if temperature is 0 or
                         the largest logit is not finite.

The reference takes x [N, V] fp32 instead of logits and temperature, and returns only the border.

Rounding: fp32. Two backends may differ if the mass at the top-p border equals top_p to one part in 10^6.

The kernel sorts nothing: kernels/border_search.py. Groups that cannot hold a relevant token are skipped.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
from torch import Tensor

from kernels.border_search import border_key, key_of, kth_key, value_of
from kernels.group_max import GROUP
from kernels.optional_triton import tl, triton

_WINDOW = 256  # how many tokens the reference looks at first


def filter_border_reference(x: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None) -> Tensor:
    floor = torch.full_like(top_p, -math.inf) if min_p is None else min_p.log()
    border = floor.clone()
    rows = ((_cuts_by_rank(x, top_k)) | (top_p < 1)).nonzero().view(-1)
    if rows.numel():
        border[rows] = _border_within(x[rows], top_k[rows], top_p[rows], floor[rows], _WINDOW)
    return border


def _cuts_by_rank(x: Tensor, top_k: Tensor) -> Tensor:
    return (top_k > 0) & (top_k < x.shape[-1])


def _border_within(x: Tensor, top_k: Tensor, top_p: Tensor, floor: Tensor, window: int) -> Tensor:
    """[N]: the smallest x that stays, searched among each row's `window` largest; rows that need more get a larger
    window.

    floor [N]: smaller x are dropped in any case.
    """
    window = min(window, x.shape[-1])
    values = x.topk(window).values
    kth_index = top_k.clamp(1, window).long()[:, None] - 1
    rank_border = values.gather(1, kth_index).masked_fill_(~_cuts_by_rank(x, top_k)[:, None], -math.inf)
    rank_border = torch.maximum(rank_border, floor[:, None])

    mass = torch.where(x >= rank_border, x.exp(), 0).sum(-1, keepdim=True)
    probability = values.exp() / mass
    mass_above = probability.cumsum(-1) - probability
    is_kept = (values >= rank_border) & ((mass_above < top_p[:, None]) | (top_p[:, None] >= 1))
    border = values.masked_fill(~is_kept, math.inf).amin(-1)

    if window < x.shape[-1]:
        is_beyond = is_kept[:, -1] | (_cuts_by_rank(x, top_k) & (top_k > window))
        rows = is_beyond.nonzero().view(-1)
        if rows.numel():
            border[rows] = _border_within(x[rows], top_k[rows], top_p[rows], floor[rows], 16 * window)
    return border


# One H200, bf16, top_p 0.9 of normal logits, us of all four launches for 1 and 256 rows of 128k:
# 16 warps with 8 KB of logits at a time 108, 390; with 16 KB 96, 365 (but 885 against 626 in fp32); with 4 KB 134, 471;
# 8 warps with 8 KB 126, 414. With 64 registers two programs share a multiprocessor; without that limit, 402.
_BORDER_WARPS = 16
_BORDER_TILE_BYTES = 8192
_BORDER_REGISTERS = 64
_NEGLIGIBLE = 40.0  # 2^31 tokens this far below the best weigh 10^-8 of the best


@triton.jit
@no_type_check
def x_scale(temperature):
    """The factor in x = (logit - largest) * scale. Finite, so that the largest itself stays at 0."""
    return tl.minimum(1 / temperature, 3e38)


# One allocation holds `largest` and `border`, so border's alignment depends on the number of rows.
@triton.jit(
    do_not_specialize_on_alignment=[
        "temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "largest_ptr", "border_ptr",
    ]
)  # fmt: skip
@no_type_check
def _filter_border_kernel(
    logits_ptr,
    maxima_ptr,
    active_ptr,  # [N, G] int32: groups that may still matter
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    largest_ptr,  # [N] fp32
    border_ptr,  # [N] fp32: the smallest x that stays
    stride_row,
    size,
    num_groups,
    HAS_MIN_P: tl.constexpr,
    NEGLIGIBLE: tl.constexpr,
    SHIFT: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    TILE_GROUPS: tl.constexpr,
):
    """Program: one row."""
    row = tl.program_id(0).to(tl.int64)
    logits_row_ptr = logits_ptr + row * stride_row
    active_row_ptr = active_ptr + row * num_groups
    group = tl.arange(0, BLOCK_GROUPS)
    maxima = tl.load(maxima_ptr + row * num_groups + group, mask=group < num_groups, other=float("-inf"))
    largest = tl.max(maxima, 0)
    tl.store(largest_ptr + row, largest)
    temperature = tl.load(temperature_ptr + row)
    is_finite = (largest > float("-inf")) & (largest < float("inf"))
    if is_finite & (temperature > 0):
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        scale = x_scale(temperature)
        low = key_of(largest - float("inf"), SHIFT)
        high = key_of(largest, SHIFT) + 1
        if (top_k > 0) & (top_k < size):
            if top_k <= num_groups:  # at least k tokens reach the k-th largest group maximum
                keys = tl.where(group < num_groups, key_of(maxima, SHIFT), low - 1)
                low = kth_key(keys, top_k, low, high)
            low = border_key(
                logits_row_ptr, active_row_ptr, maxima, size, num_groups, low, high, top_k, largest, scale,
                largest - 32, False, SHIFT, GROUP, BLOCK_GROUPS, TILE_GROUPS,
            )  # fmt: skip
        floor = largest - float("inf")
        if HAS_MIN_P:
            floor = tl.log(tl.load(min_p_ptr + row))
            smallest = largest + temperature * floor
            smallest_key = key_of(smallest, SHIFT)
            smallest_key += (value_of(smallest_key, SHIFT) < smallest).to(tl.int64)
            low = tl.minimum(tl.maximum(low, smallest_key), high - 1)
        if top_p < 1:
            low = border_key(
                logits_row_ptr, active_row_ptr, maxima, size, num_groups, low, high, top_p, largest, scale,
                largest - NEGLIGIBLE * temperature, True, SHIFT, GROUP, BLOCK_GROUPS, TILE_GROUPS,
            )  # fmt: skip
        # Without any filter the border is -inf. Min-p compares x itself, as the reference does.
        border = (value_of(low, SHIFT) - largest) * scale
        if HAS_MIN_P:
            is_cut = ((top_k > 0) & (top_k < size)) | (top_p < 1)
            border = tl.where(is_cut, tl.maximum(border, floor), floor)
        tl.store(border_ptr + row, border)


def filter_border_triton(
    logits: Tensor, maxima: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """On CUDA tensors, or on any in Triton's interpreter. The parameters are contiguous."""
    num_rows, size = logits.shape
    num_groups = maxima.shape[1]
    assert logits.stride(-1) == 1 and 0 < size < 2**31 - GROUP and logits.dtype in (torch.bfloat16, torch.float32)
    assert maxima.is_contiguous() and num_groups == triton.cdiv(size, GROUP)
    active = torch.empty_like(maxima, dtype=torch.int32)
    largest, border = torch.empty((2, num_rows), dtype=torch.float32, device=logits.device)
    if num_rows == 0:
        return largest, border
    _filter_border_kernel[(num_rows,)](
        logits,
        maxima,
        active,
        temperature,
        top_k,
        top_p,
        top_p if min_p is None else min_p,
        largest,
        border,
        logits.stride(0),
        size,
        num_groups,
        HAS_MIN_P=min_p is not None,
        NEGLIGIBLE=_NEGLIGIBLE,
        SHIFT=16 if logits.dtype == torch.bfloat16 else 0,
        GROUP=GROUP,
        BLOCK_GROUPS=triton.next_power_of_2(num_groups),
        TILE_GROUPS=_BORDER_TILE_BYTES // (GROUP * logits.dtype.itemsize),
        num_warps=_BORDER_WARPS,
        maxnreg=_BORDER_REGISTERS,
    )
    return largest, border
