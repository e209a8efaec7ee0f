"""Searches the border of a filter among a row's logits, without sorting: parts of kernels/filter_border.py's kernel.

Every value that a logit can have has a key, an integer; keys are in the order of the values. The border is the largest
key such that the tokens at or above it are enough, by number or by mass. It is searched between two keys. Each round
reads the groups of tokens that may matter, and sums what lies at or above three keys in between. The result is exact,
and takes the same time for any top-k and top-p.

Each function is called by one program, for one row of logits. Groups of tokens are those of kernels/group_max.py.
"""

from __future__ import annotations

from typing import no_type_check

from kernels.optional_triton import tl, triton


@triton.jit
@no_type_check
def key_of(value, SHIFT: tl.constexpr):
    """Integers in the order of the values. SHIFT: low bits that are 0 in every logit (16 for bf16 in fp32)."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT).to(tl.int64)


@triton.jit
@no_type_check
def value_of(key, SHIFT: tl.constexpr):
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
def kth_key(keys, k, low, high):
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
    """The two ends and their weights, after what lies at or above `key` has been weighed. A key outside changes
    nothing."""
    becomes_low = (weight >= target) & (key >= low)
    becomes_high = (weight < target) & (key < high)
    weight_low = tl.where(becomes_low, weight.to(tl.float32), weight_low)
    weight_high = tl.where(becomes_high, weight.to(tl.float32), weight_high)
    return tl.where(becomes_low, key, low), tl.where(becomes_high, key, high), weight_low, weight_high


@triton.jit
@no_type_check
def border_key(
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

    maxima [BLOCK_GROUPS] fp32: of the row's groups, padded with -inf. active_row_ptr: scratch for num_groups int32,
    used by this program only. low, high: int64. GROUP: tokens in a group. TILE_GROUPS: groups read at a time.

    `wanted` is a number of tokens. BY_MASS: it is a share of the mass of all tokens at or above `low`, where a token
    weighs exp((logit - largest) * scale), and groups below `lowest` are skipped. The tokens at or above `low` must be
    enough.

    Each round weighs three keys between low and high. Usually they are around the value where a straight line between
    the two ends reaches `wanted`. After a round that left more than a third of the range, they divide the values
    evenly. Every fourth round they divide the keys evenly, which bounds the number of rounds for any row. The first
    round has no line yet and looks near the largest. The first round, and in fp32 every round, also moves both ends to
    the nearest logits between them. Ordinary rows of 128k logits take 3 to 8 rounds in bf16 and 4 to 13 in fp32.
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
        floor = tl.maximum(value_of(low, SHIFT), -3.4e38)  # a forbidden token cannot be drawn, whether it stays or not
        if BY_MASS:
            floor = tl.maximum(floor, lowest)
        bottom, top = tl.maximum(floor, lowest), value_of(high - 1, SHIFT)
        width = high - low
        meeting = (weight_low - target) / (weight_low - weight_high)
        meeting = tl.minimum(tl.maximum(meeting, 0.0), 1.0)
        is_by_key = turn % 4 == 3
        share1 = tl.where(turn == 0, 0.5, tl.where(is_narrowed, tl.maximum(meeting - 0.03, 0.0), 0.25))
        share2 = tl.where(turn == 0, 0.8, tl.where(is_narrowed, meeting, 0.5))
        share3 = tl.where(turn == 0, 0.95, tl.where(is_narrowed, tl.minimum(meeting + 0.03, 1.0), 0.75))
        key1 = tl.where(is_by_key, low + width // 4, key_of(bottom * (1 - share1) + top * share1, SHIFT))
        key2 = tl.where(is_by_key, low + width // 2, key_of(bottom * (1 - share2) + top * share2, SHIFT))
        key3 = tl.where(is_by_key, low + 3 * width // 4, key_of(bottom * (1 - share3) + top * share3, SHIFT))
        key1, key2, key3 = _inside(key1, low, high), _inside(key2, low, high), _inside(key3, low, high)
        if BY_MASS:
            key1 = tl.where(turn == 0, low, key1)
        value1, value2, value3 = value_of(key1, SHIFT), value_of(key2, SHIFT), value_of(key3, SHIFT)
        ceiling = value_of(high, SHIFT)
        is_drawn_in = (SHIFT == 0) | (turn == 0)

        is_active = (group < num_groups) & (maxima >= floor)
        num_active = tl.sum(is_active.to(tl.int32), 0)
        tl.debug_barrier()  # no thread may still read the previous round's list
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
            low = tl.maximum(low, key_of(tl.min(smallest, 0), SHIFT))
            high = tl.minimum(high, key_of(tl.max(biggest, 0), SHIFT) + 1)
        is_narrowed = (turn == 0) | ((value_of(high - 1, SHIFT) - value_of(low, SHIFT)) * 3 <= top - bottom)
        turn += 1
    return low
