"""Where top-k, min-p and top-p cut: the smallest score of a row's distribution that stays.

x = (logits - largest) / temperature; every token below the row's border is dropped, in this order:
    top-k (0 < top_k < V): smaller than the k-th largest; ties with it stay
    min-p (min_p > 0): less than min_p times as probable as the best: x < log(min_p)
    top-p (top_p < 1): of what is left, renormalised, the strictly more probable tokens already hold top_p of the mass;
        the token that crosses top_p stays, and so do ties with it. The best always stays.
    border[n] = the smallest x that stays;  -inf if no filter is on

Tensors (N rows, V vocabulary, G groups of 128 tokens):
    logits       [N, V]  bf16 or fp32, last stride 1; read only. -inf forbids a token.
    maxima       [N, G]  fp32, of kernels/group_max.py
    temperature  [N]     fp32
    top_k        [N]     int32; 0 (or >= V) keeps all
    top_p        [N]     fp32, in (0, 1]; 1 keeps all
    min_p        [N]     fp32, in [0, 1]; 0 keeps all. None: 0 for every row
    returns largest, border  [N] fp32, new. Both are those of rows to draw from: where temperature is 0, or the largest
                         logit is not finite, border is not written.

The reference takes x [N, V] fp32 in place of logits and temperature, and gives the border alone.

Rounding: fp32. Two backends may differ where the mass at the top-p border agrees to one part in 10^6.

The kernel sorts nothing. Groups that cannot hold a token of interest are passed over. A filter's border is sought
among the values that a logit can take, three at a time, by how many tokens (or how much mass) lie at or above each:
exact, and as fast for any k and p.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
from torch import Tensor

from kernels.group_max import GROUP
from kernels.optional_triton import tl, triton

_WINDOW = 256  # tokens looked at first by the reference


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
    """[N]: the smallest x that stays, sought among each row's `window` largest; rows that need more get more.

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
# 8 warps with 8 KB 126, 414. 64 registers let two programs share a multiprocessor: without, 402.
_BORDER_WARPS = 16
_BORDER_TILE_BYTES = 8192
_BORDER_REGISTERS = 64
_NEGLIGIBLE = 40.0  # 2^31 tokens this far below the best weigh 10^-8 of it


@triton.jit
@no_type_check
def _key(value, SHIFT: tl.constexpr):
    """Integers in the order of the values. SHIFT: low bits that are 0 in every logit (16 for bf16 in fp32)."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT).to(tl.int64)


@triton.jit
@no_type_check
def _value(key, SHIFT: tl.constexpr):
    """The value that has this key."""
    ordered = key.to(tl.int32)
    ordered = (ordered << SHIFT) | ((ordered >> 31) & ((1 << SHIFT) - 1))
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def _inside(key, low, high):
    return tl.minimum(tl.maximum(key, low + 1), high - 1)


@triton.jit
@no_type_check
def x_scale(temperature):
    """Of x = (logit - largest) * scale. Finite, so that the largest itself stays at 0."""
    return tl.minimum(1 / temperature, 3e38)


@triton.jit
@no_type_check
def _kth_key(keys, k, low, high):
    """The largest key in [low, high) that at least k of `keys` reach; at least k of them must reach low."""
    while high - low > 1:
        middle = low + (high - low) // 2
        is_reached = tl.sum((keys >= middle).to(tl.int32), 0) >= k
        low = tl.where(is_reached, middle, low)
        high = tl.where(is_reached, high, middle)
    return low


@triton.jit
@no_type_check
def _narrowed(low, high, weight_low, weight_high, key, weight, target):
    """The ends and their weights, once what lies at or above `key` has been weighed. A key outside changes nothing."""
    becomes_low = (weight >= target) & (key >= low)
    becomes_high = (weight < target) & (key < high)
    weight_low = tl.where(becomes_low, weight.to(tl.float32), weight_low)
    weight_high = tl.where(becomes_high, weight.to(tl.float32), weight_high)
    return tl.where(becomes_low, key, low), tl.where(becomes_high, key, high), weight_low, weight_high


@triton.jit
@no_type_check
def _border_key(
    logits_row_ptr,
    active_row_ptr,
    maxima,
    size,
    num_groups,
    low,
    high,
    wanted,
    largest,
    scale,
    lowest,
    BY_MASS: tl.constexpr,
    SHIFT: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    TILE_GROUPS: tl.constexpr,
):
    """The largest key in [low, high) such that the tokens at or above it are at least `wanted`.

    `wanted` counts tokens; BY_MASS it is a share of the mass of all tokens at or above `low`, where a token weighs
    exp((logit - largest) * scale), and groups below `lowest` are not looked at. At `low` there must be enough.

    Each turn weighs three keys between low and high. As a rule they stand around the value at which a straight line
    between the two ends meets `wanted`; after a turn that left more than a third they divide the values evenly; every
    fourth turn they divide the keys evenly, which bounds the number of turns for any row. The first turn has no line
    yet, and looks near the largest. The first turn, and in fp32 every turn, also draws both ends in to the logits
    between them. Ordinary rows of 128k logits take 3 to 8 turns in bf16 and 4 to 13 in fp32.
    """
    PIECES: tl.constexpr = GROUP // 8
    group = tl.arange(0, BLOCK_GROUPS)
    piece = tl.arange(0, TILE_GROUPS * PIECES)
    dtype: tl.constexpr = tl.float32 if BY_MASS else tl.int32
    log2_scale = tl.minimum(scale * 1.4426950408889634, 3e38)
    target = wanted
    weight_low, weight_high = target * 2.0, target * 0.0
    turn = 0
    is_narrowed = turn == 0
    while high - low > 1:
        floor = tl.maximum(_value(low, SHIFT), -3.4e38)  # a forbidden token cannot be drawn, whether it stays or not
        if BY_MASS:
            floor = tl.maximum(floor, lowest)
        bottom, top = tl.maximum(floor, lowest), _value(high - 1, SHIFT)
        width = high - low
        meeting = (weight_low - target) / (weight_low - weight_high)
        meeting = tl.minimum(tl.maximum(meeting, 0.0), 1.0)
        is_by_key = turn % 4 == 3
        share1 = tl.where(turn == 0, 0.5, tl.where(is_narrowed, tl.maximum(meeting - 0.03, 0.0), 0.25))
        share2 = tl.where(turn == 0, 0.8, tl.where(is_narrowed, meeting, 0.5))
        share3 = tl.where(turn == 0, 0.95, tl.where(is_narrowed, tl.minimum(meeting + 0.03, 1.0), 0.75))
        key1 = tl.where(is_by_key, low + width // 4, _key(bottom * (1 - share1) + top * share1, SHIFT))
        key2 = tl.where(is_by_key, low + width // 2, _key(bottom * (1 - share2) + top * share2, SHIFT))
        key3 = tl.where(is_by_key, low + 3 * width // 4, _key(bottom * (1 - share3) + top * share3, SHIFT))
        key1, key2, key3 = _inside(key1, low, high), _inside(key2, low, high), _inside(key3, low, high)
        if BY_MASS:
            key1 = tl.where(turn == 0, low, key1)
        value1, value2, value3 = _value(key1, SHIFT), _value(key2, SHIFT), _value(key3, SHIFT)
        ceiling = _value(high, SHIFT)
        is_drawn_in = (SHIFT == 0) | (turn == 0)

        is_active = (group < num_groups) & (maxima >= floor)
        num_active = tl.sum(is_active.to(tl.int32), 0)
        tl.debug_barrier()  # the list is this program's alone: nobody may still read the last turn's
        place = tl.cumsum(is_active.to(tl.int32), 0) - 1
        tl.store(active_row_ptr + place, group, mask=is_active)
        tl.debug_barrier()

        sum1 = tl.zeros([TILE_GROUPS * PIECES], dtype)
        sum2 = tl.zeros([TILE_GROUPS * PIECES], dtype)
        sum3 = tl.zeros([TILE_GROUPS * PIECES], dtype)
        smallest = tl.full([TILE_GROUPS * PIECES], float("inf"), tl.float32)
        biggest = tl.full([TILE_GROUPS * PIECES], float("-inf"), tl.float32)
        for base in range(0, num_active, TILE_GROUPS):
            index = (base + piece // PIECES)[:, None]
            active = tl.load(active_row_ptr + index, mask=index < num_active, other=0)
            token = active * GROUP + (piece % PIECES * 8)[:, None] + tl.arange(0, 8)[None, :]
            is_token = (index < num_active) & (token < size)
            logits = tl.load(logits_row_ptr + token, mask=is_token, other=float("-inf")).to(tl.float32)
            if is_drawn_in:
                smallest = tl.minimum(smallest, tl.min(tl.where(logits >= floor, logits, float("inf")), 1))
                biggest = tl.maximum(biggest, tl.max(tl.where(logits < ceiling, logits, float("-inf")), 1))
            if BY_MASS:
                weights = tl.exp2((logits - largest) * log2_scale)
                sum1 += tl.sum(tl.where(logits >= value1, weights, 0.0), 1)
                sum2 += tl.sum(tl.where(logits >= value2, weights, 0.0), 1)
                sum3 += tl.sum(tl.where(logits >= value3, weights, 0.0), 1)
            else:
                sum1 += tl.sum((logits >= value1).to(tl.int32), 1)
                sum2 += tl.sum((logits >= value2).to(tl.int32), 1)
                sum3 += tl.sum((logits >= value3).to(tl.int32), 1)
        total1, total2, total3 = tl.sum(sum1, 0), tl.sum(sum2, 0), tl.sum(sum3, 0)
        if BY_MASS:
            target = tl.where(turn == 0, wanted * total1, target)
        low, high, weight_low, weight_high = _narrowed(low, high, weight_low, weight_high, key1, total1, target)
        low, high, weight_low, weight_high = _narrowed(low, high, weight_low, weight_high, key2, total2, target)
        low, high, weight_low, weight_high = _narrowed(low, high, weight_low, weight_high, key3, total3, target)
        if is_drawn_in:
            low = tl.maximum(low, _key(tl.min(smallest, 0), SHIFT))
            high = tl.minimum(high, _key(tl.max(biggest, 0), SHIFT) + 1)
        is_narrowed = (turn == 0) | ((_value(high - 1, SHIFT) - _value(low, SHIFT)) * 3 <= top - bottom)
        turn += 1
    return low


# One allocation holds `largest` and `border`: where the second begins depends on the number of rows.
@triton.jit(
    do_not_specialize_on_alignment=[
        "temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "largest_ptr", "border_ptr",
    ]
)  # fmt: skip
@no_type_check
def _filter_border_kernel(
    logits_ptr,
    maxima_ptr,
    active_ptr,  # [N, G] int32: groups still of interest
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
        low = _key(largest - float("inf"), SHIFT)
        high = _key(largest, SHIFT) + 1
        if (top_k > 0) & (top_k < size):
            if top_k <= num_groups:  # the k-th largest group holds k tokens at least as large as its own largest
                keys = tl.where(group < num_groups, _key(maxima, SHIFT), low - 1)
                low = _kth_key(keys, top_k, low, high)
            low = _border_key(
                logits_row_ptr, active_row_ptr, maxima, size, num_groups, low, high, top_k, largest, scale,
                largest - 32, False, SHIFT, GROUP, BLOCK_GROUPS, TILE_GROUPS,
            )  # fmt: skip
        floor = largest - float("inf")
        if HAS_MIN_P:
            floor = tl.log(tl.load(min_p_ptr + row))
            smallest = largest + temperature * floor
            smallest_key = _key(smallest, SHIFT)
            smallest_key += (_value(smallest_key, SHIFT) < smallest).to(tl.int64)
            low = tl.minimum(tl.maximum(low, smallest_key), high - 1)
        if top_p < 1:
            low = _border_key(
                logits_row_ptr, active_row_ptr, maxima, size, num_groups, low, high, top_p, largest, scale,
                largest - NEGLIGIBLE * temperature, True, SHIFT, GROUP, BLOCK_GROUPS, TILE_GROUPS,
            )  # fmt: skip
        # A filter that is off leaves -inf. In min-p's case x itself decides, as in the reference.
        border = (_value(low, SHIFT) - largest) * scale
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
