"""One id per row of logits: the largest, or a draw from the filtered distribution.

Order, per row:
    1. the largest logit is not finite (a NaN, +inf, or nothing but -inf in the row): the answer is -1
    2. temperature 0: argmax of the logits, the lowest id among equals; nothing below applies
    3. x = (logits - largest) / temperature
    4. top-k (top_k > 0): drop every token whose x is smaller than the k-th largest; ties with it stay
    5. min-p (min_p > 0): drop every token that is less than min_p times as probable as the best: x < log(min_p)
    6. top-p (top_p < 1): of what is left, renormalised, drop a token if the strictly more probable ones already
       hold top_p of the mass; the token that crosses top_p stays, and so do ties with it. The best always stays.
    7. Gumbel-max: argmax of x + g, the lowest id among equals, with g[t] = -log(-log1p(-u[t]))

u is stateless: u[t] = uniform(word t % 4 of philox_4x32(counter = (t // 4, position low, position high, 0),
key = (seed low, seed high))). So a draw is a function of (logits, parameters, seed, position) and never of the batch.

Tensors (N rows, V vocabulary):
    logits       [N, V]  bf16 or fp32, last stride 1; read only. -inf forbids a token.
    temperature  [N]     fp32, >= 0
    top_k        [N]     int32; 0 (or >= V) keeps all
    top_p        [N]     fp32, in (0, 1]; 1 keeps all
    min_p        [N]     fp32, in [0, 1]; 0 keeps all. None: 0 for every row
    seeds        [N]     int64
    positions    [N]     int64: index of the new token in its sequence
    returns      [N]     int64, new; -1 for a row that cannot be drawn from

Rounding: fp32 throughout. The Philox words are bit for bit; two backends may differ in the last bit of x, of a
logarithm or of a sum, so in a draw whose two best scores (or whose mass at the top-p border) agree to one part in 10^6.
N may be 0. V < 2^31.

The kernels sort nothing. Tokens are looked at in groups of 128, whose largest are known (kernels/group_max.py): groups
that cannot hold a token of interest are passed over. A filter's border is sought among the values that a logit can
take, three at a time, by how many tokens (or how much mass) lie at or above each: exact, and as fast for any k and p.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
from torch import Tensor

from kernels.greedy_tokens import first_largest
from kernels.group_max import GROUP, group_max_triton
from kernels.optional_triton import tl, triton
from kernels.philox import philox_4x32_reference, philox_uniform, philox_words, split_int64, uniform

INVALID_TOKEN_ID = -1

# g lies within [-log(24 log 2), 33 log 2]: a token whose x is this far below the best cannot win.
_GUMBEL_SPAN = 33 * math.log(2) + math.log(24 * math.log(2)) + 0.01
_WINDOW = 256  # tokens looked at first for a filter's border
_DENSE_NOISE = 200_000  # values of noise made at a time over whole rows: its counters stay in a CPU's cache


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
        x = _drop_filtered(x, top_k[rows], top_p[rows], None if min_p is None else min_p[rows])
        ids[rows] = _gumbel_argmax(x, seeds[rows], positions[rows])
    return torch.where(largest.isfinite(), ids, INVALID_TOKEN_ID)


def _drop_filtered(x: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None) -> Tensor:
    """x [N, V] with -inf where top-k, min-p or top-p drops a token."""
    floor = torch.full_like(top_p, -math.inf) if min_p is None else min_p.log()
    border = floor.clone()
    rows = ((_cuts_by_rank(x, top_k)) | (top_p < 1)).nonzero().view(-1)
    if rows.numel():
        border[rows] = _filter_border(x[rows], top_k[rows], top_p[rows], floor[rows], _WINDOW)
    elif min_p is None:
        return x
    return x.masked_fill(x < border[:, None], -math.inf)


def _cuts_by_rank(x: Tensor, top_k: Tensor) -> Tensor:
    return (top_k > 0) & (top_k < x.shape[-1])


def _filter_border(x: Tensor, top_k: Tensor, top_p: Tensor, floor: Tensor, window: int) -> Tensor:
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
    is_kept[:, 0] = True
    border = values.masked_fill(~is_kept, math.inf).amin(-1)

    if window < x.shape[-1]:
        is_beyond = is_kept[:, -1] | (_cuts_by_rank(x, top_k) & (top_k > window))
        rows = is_beyond.nonzero().view(-1)
        if rows.numel():
            border[rows] = _filter_border(x[rows], top_k[rows], top_p[rows], floor[rows], 16 * window)
    return border


def _gumbel_argmax(x: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """[N]: argmax of x + g. Few tokens can win as a rule; noise is then made for those alone."""
    can_win = x > -_GUMBEL_SPAN
    if 4 * int(can_win.sum()) > x.numel():
        num_rows = max(1, _DENSE_NOISE // x.shape[-1])
        parts = zip(*(torch.split(t, num_rows) for t in (x, seeds, positions)), strict=True)
        return torch.cat([(part + _dense_gumbel(part, *keys)).argmax(-1) for part, *keys in parts])
    row, token = can_win.nonzero().unbind(-1)
    scores = torch.full_like(x, -math.inf)
    scores[row, token] = x[row, token] + _gumbel_of(token, seeds[row], positions[row])
    return scores.argmax(-1)


def _dense_gumbel(x: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """[N, V]: g of every token."""
    counter = torch.arange(-(-x.shape[-1] // 4), device=x.device)
    words = torch.stack(_words(counter, seeds[:, None], positions[:, None]), dim=-1)
    return _gumbel(words.view(x.shape[0], -1)[:, : x.shape[-1]])


def _gumbel_of(token: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """[M]: g of one token each."""
    words = torch.stack(_words(token // 4, seeds, positions), dim=-1)
    return _gumbel(words.gather(-1, (token % 4)[:, None]).view(-1))


def _words(counter: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    low, high = split_int64(positions)
    return philox_4x32_reference((counter, low, high, torch.zeros_like(low)), split_int64(seeds))


def _gumbel(words: Tensor) -> Tensor:
    return uniform(words).neg_().log1p_().neg_().log_().neg_()


# The border's program. One H200, bf16, top_p 0.9 of normal logits, us of all four launches for 1 and 256 rows of 128k:
# 16 warps with 8 KB of logits at a time 108, 390; with 16 KB 96, 365 (but 885 against 626 in fp32); with 4 KB 134, 471;
# 8 warps with 8 KB 126, 414. 64 registers let two programs share a multiprocessor: without, 402.
_BORDER_WARPS = 16
_BORDER_TILE_BYTES = 8192
_BORDER_REGISTERS = 64
_CHUNK = 1024  # tokens that draw their noise in one program
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
def _scale(temperature):
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
        scale = _scale(temperature)
        low = _key(largest - float("inf"), SHIFT)
        high = _key(largest, SHIFT) + 1
        if (top_k > 0) & (top_k < size):
            if top_k <= num_groups:  # the k-th largest group holds k tokens at least as large as its own largest
                keys = tl.where(group < num_groups, _key(maxima, SHIFT), low - 1)
                low = _kth_key(keys, top_k, low, high)
            low = _border_key(
                logits_row_ptr,
                active_row_ptr,
                maxima,
                size,
                num_groups,
                low,
                high,
                top_k,
                largest,
                scale,
                largest - 32,
                False,
                SHIFT,
                GROUP,
                BLOCK_GROUPS,
                TILE_GROUPS,
            )
        floor = largest - float("inf")
        if HAS_MIN_P:
            floor = tl.log(tl.load(min_p_ptr + row))
            smallest = largest + temperature * floor
            smallest_key = _key(smallest, SHIFT)
            smallest_key += (_value(smallest_key, SHIFT) < smallest).to(tl.int64)
            low = tl.minimum(tl.maximum(low, smallest_key), high - 1)
        if top_p < 1:
            low = _border_key(
                logits_row_ptr,
                active_row_ptr,
                maxima,
                size,
                num_groups,
                low,
                high,
                top_p,
                largest,
                scale,
                largest - NEGLIGIBLE * temperature,
                True,
                SHIFT,
                GROUP,
                BLOCK_GROUPS,
                TILE_GROUPS,
            )
        # A filter that is off leaves -inf. In min-p's case x itself decides, as in the reference.
        border = (_value(low, SHIFT) - largest) * scale
        if HAS_MIN_P:
            is_cut = ((top_k > 0) & (top_k < size)) | (top_p < 1)
            border = tl.where(is_cut, tl.maximum(border, floor), floor)
        tl.store(border_ptr + row, border)


@triton.jit(
    do_not_specialize_on_alignment=["temperature_ptr", "seeds_ptr", "positions_ptr", "largest_ptr", "border_ptr"]
)
@no_type_check
def _gumbel_kernel(
    logits_ptr,
    maxima_ptr,
    largest_ptr,
    border_ptr,
    temperature_ptr,
    seeds_ptr,
    positions_ptr,
    best_score_ptr,  # [N, chunks] fp32
    best_token_ptr,  # [N, chunks] int32
    stride_row,
    size,
    num_groups,
    num_chunks,
    GUMBEL_SPAN: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Program (row, chunk of tokens): the best of the chunk's scores and its lowest id."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    largest = tl.load(largest_ptr + row)
    is_finite = (largest > float("-inf")) & (largest < float("inf"))
    if (temperature <= 0) | (is_finite == 0):
        return
    border = tl.load(border_ptr + row)
    slot = row * num_chunks + chunk
    group = chunk * (CHUNK // GROUP) + tl.arange(0, CHUNK // GROUP)
    maxima = tl.load(maxima_ptr + row * num_groups + group, mask=group < num_groups, other=float("-inf"))
    scale = _scale(temperature)
    highest = (tl.max(maxima, 0) - largest) * scale
    if (highest < border) | (highest < -GUMBEL_SPAN):
        tl.store(best_score_ptr + slot, float("-inf"))
        tl.store(best_token_ptr + slot, 0)
        return

    token = chunk * CHUNK + tl.arange(0, CHUNK)
    logits = tl.load(logits_ptr + row * stride_row + token, mask=token < size, other=float("-inf")).to(tl.float32)
    x = (logits - largest) * scale
    seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
    counter = (chunk * (CHUNK // 4) + tl.arange(0, CHUNK // 4)).to(tl.uint32)
    zero = (position & 0).to(tl.uint32)
    w0, w1, w2, w3 = philox_words(
        counter,
        (position & 0xFFFFFFFF).to(tl.uint32),
        ((position >> 32) & 0xFFFFFFFF).to(tl.uint32),
        zero,
        (seed & 0xFFFFFFFF).to(tl.uint32),
        ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32),
    )
    u = philox_uniform(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))
    rest = 1.0 - u
    exponential = (u - (1.0 - rest)) - tl.log(rest)  # -log1p(-u): what rounding 1 - u lost is added
    scores = tl.where((x >= border) & (token < size), x - tl.log(exponential), float("-inf"))
    best = tl.max(scores, 0)
    tl.store(best_score_ptr + slot, best)
    tl.store(best_token_ptr + slot, tl.min(tl.where(scores == best, token, size), 0))


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
    num_groups, num_chunks = maxima.shape[1], triton.cdiv(size, _CHUNK)
    block_groups = triton.next_power_of_2(num_groups)
    active = torch.empty_like(maxima, dtype=torch.int32)
    largest, border = torch.empty((2, num_rows), dtype=torch.float32, device=logits.device)
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
        BLOCK_GROUPS=block_groups,
        TILE_GROUPS=_BORDER_TILE_BYTES // (GROUP * logits.dtype.itemsize),
        num_warps=_BORDER_WARPS,
        maxnreg=_BORDER_REGISTERS,
    )
    best_score = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=logits.device)
    best_token = torch.empty((num_rows, num_chunks), dtype=torch.int32, device=logits.device)
    _gumbel_kernel[(num_rows, num_chunks)](
        logits,
        maxima,
        largest,
        border,
        temperature,
        seeds,
        positions,
        best_score,
        best_token,
        logits.stride(0),
        size,
        num_groups,
        num_chunks,
        GUMBEL_SPAN=_GUMBEL_SPAN,
        GROUP=GROUP,
        CHUNK=_CHUNK,
        num_warps=4,
    )
    _choose_kernel[(num_rows,)](
        logits,
        maxima,
        temperature,
        largest,
        best_score,
        best_token,
        out,
        logits.stride(0),
        size,
        num_groups,
        num_chunks,
        GROUP=GROUP,
        BLOCK_GROUPS=block_groups,
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
