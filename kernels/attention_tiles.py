"""The inner loops of paged attention over tiles of keys: a running softmax, and the merge of two.

Parts of kernels/paged_attention_prefill.py, whose contract and letters hold here, and of
kernels/ordered_attention_decode.py. A row's bits depend on its own query, its keys and values, and where tiles begin;
not on the other rows, nor on tiles of which the row sees nothing.

To get the same bits in every tile layout, a row's total of weights can be kept in eight parts. Of each 32 keys, one
part sums those whose positions agree in the last four bits except the lowest. In the tensor cores' result layout each
part belongs to one thread, and every addition has two operands.
"""

from __future__ import annotations

from typing import no_type_check

from kernels.fp8_cache import scale_of
from kernels.fp8_numbers import fp8_numbers
from kernels.optional_triton import tl, triton


@triton.jit
@no_type_check
def total_parts(weights):
    """[M, N] -> [M, 2, 4]. N is 32 or 64."""
    BLOCK_M: tl.constexpr = weights.shape[0]
    parts = tl.reshape(weights, [BLOCK_M, weights.shape[1] // 32, 2, 2, 4, 2])
    return tl.sum(tl.sum(tl.sum(parts, 5), 2), 1)


@triton.jit
@no_type_check
def total_of_parts(parts):
    """[M, 2, 4] -> [M]."""
    return tl.sum(tl.sum(tl.sum(tl.reshape(parts, [parts.shape[0], 2, 2, 2]), 3), 2), 1)


@triton.jit
@no_type_check
def attend_tile(
    query,  # [BLOCK_M, BLOCK_D]
    position,  # [BLOCK_M]: of each row's token; [1]: all rows belong to one token
    highest,
    total,  # [BLOCK_M], or [BLOCK_M, 2, 4] in parts
    acc,
    tile_begin,
    kv_first,
    kv_end,
    table_row_ptr,
    key_cache_ptr,
    value_cache_ptr,
    key_exponents_ptr,
    value_exponents_ptr,
    kv_head,
    block_rows,
    score_scale,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    IS_FP8: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    MASKED: tl.constexpr,
    MAY_SEE_NOTHING: tl.constexpr,
):
    """Add the keys and values at BLOCK_KV positions from tile_begin on to the rows' running softmax, as in
    FlashAttention (Dao et al. 2022). Its state: each row's highest score so far and, relative to it, the total of the
    weights and the weighted sum of the values, `acc`. Not MASKED: every row sees the whole tile. kv_first: the first
    position that any row sees; nothing before it is read. MAY_SEE_NOTHING: some row sees nothing of the first tiles."""
    cell = tl.arange(0, BLOCK_KV)
    kv_position = tile_begin + cell
    dim = tl.arange(0, BLOCK_D)
    if BLOCK_SIZE % BLOCK_KV == 0:
        block = tl.load(table_row_ptr + tile_begin // BLOCK_SIZE)
        place = (tile_begin % BLOCK_SIZE + cell) * NUM_KV_HEADS + kv_head
        cache_row = block * block_rows + place
    else:
        if MASKED:
            block = tl.load(table_row_ptr + kv_position // BLOCK_SIZE, mask=kv_position < kv_end, other=0)
        else:
            block = tl.load(table_row_ptr + kv_position // BLOCK_SIZE)
        place = kv_position % BLOCK_SIZE * NUM_KV_HEADS + kv_head
        cache_row = block * block_rows + place
    offset = (cache_row.to(tl.int64) * HEAD_DIM)[:, None] + dim[None, :]
    is_seen_by_any = kv_position < kv_end
    if SLIDING_WINDOW > 0:
        is_seen_by_any = is_seen_by_any & (kv_position >= kv_first)
    if MASKED:
        is_cell = is_seen_by_any[:, None] & (dim < HEAD_DIM)[None, :]
        keys = tl.load(key_cache_ptr + offset, mask=is_cell, other=0.0)
        values = tl.load(value_cache_ptr + offset, mask=is_cell, other=0.0)
    elif HEAD_DIM < BLOCK_D:
        is_dim = (dim < HEAD_DIM)[None, :]
        keys = tl.load(key_cache_ptr + offset, mask=is_dim, other=0.0)
        values = tl.load(value_cache_ptr + offset, mask=is_dim, other=0.0)
    else:
        keys = tl.load(key_cache_ptr + offset)
        values = tl.load(value_cache_ptr + offset)

    if IS_FP8:
        exponent = block.to(tl.int64) * block_rows * HEAD_DIM + place
        if MASKED:
            key_exponent = tl.load(key_exponents_ptr + exponent, mask=is_seen_by_any, other=0)
            value_exponent = tl.load(value_exponents_ptr + exponent, mask=is_seen_by_any, other=0)
        else:
            key_exponent = tl.load(key_exponents_ptr + exponent)
            value_exponent = tl.load(value_exponents_ptr + exponent)
        keys, values = fp8_numbers(keys, query.dtype), fp8_numbers(values, query.dtype)
    scores = tl.dot(query, tl.trans(keys), input_precision="tf32x3")
    if IS_FP8:
        scores *= scale_of(key_exponent)[None, :]
    factor = score_scale
    if SOFTCAP > 0:
        scores = 1 - 2 / (tl.exp2(tl.minimum(scores * score_scale * (2 / SOFTCAP), 64.0)) + 1)
        factor = SOFTCAP * 1.4426950408889634
    if MASKED:
        is_seen = kv_position[None, :] <= position[:, None]
        if SLIDING_WINDOW > 0:
            is_seen = is_seen & (kv_position[None, :] > position[:, None] - SLIDING_WINDOW)
        scores = tl.where(is_seen, scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, 1) * factor)
    known = higher
    if MASKED and MAY_SEE_NOTHING:
        known = tl.where(higher > float("-inf"), higher, 0)
    decay = tl.exp2(highest - known)
    weights = tl.exp2(scores * factor - known[:, None])
    if len(total.shape) == 1:
        total = total * decay + tl.sum(weights, 1)
    else:
        total = tl.fma(total, tl.broadcast_to(decay[:, None, None], total.shape), total_parts(weights))
    if IS_FP8:
        weights *= scale_of(value_exponent)[None, :]
    acc = tl.dot(weights.to(values.dtype), values, acc * decay[:, None], input_precision="tf32x3")
    return higher, total, acc


@triton.jit
@no_type_check
def attend_tiles(
    query,
    position,
    highest,
    total,
    acc,
    begin,
    full_begin,
    full_end,
    end,
    kv_first,
    kv_end,
    table_row_ptr,
    key_cache_ptr,
    value_cache_ptr,
    key_exponents_ptr,
    value_exponents_ptr,
    kv_head,
    block_rows,
    score_scale,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    IS_FP8: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    MAY_SEE_NOTHING: tl.constexpr,
):
    """Add the tiles of begin : end; every row sees those of full_begin : full_end whole."""
    if SLIDING_WINDOW > 0:
        for tile_begin in tl.range(begin, full_begin, BLOCK_KV, num_stages=NUM_STAGES):
            highest, total, acc = attend_tile(
                query, position, highest, total, acc, tile_begin, kv_first, kv_end, table_row_ptr, key_cache_ptr,
                value_cache_ptr, key_exponents_ptr, value_exponents_ptr, kv_head, block_rows, score_scale,
                NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, SLIDING_WINDOW, SOFTCAP, IS_FP8, BLOCK_D, BLOCK_KV, True,
                MAY_SEE_NOTHING,
            )  # fmt: skip
    for tile_begin in tl.range(full_begin, full_end, BLOCK_KV, num_stages=NUM_STAGES):
        highest, total, acc = attend_tile(
            query, position, highest, total, acc, tile_begin, kv_first, kv_end, table_row_ptr, key_cache_ptr,
            value_cache_ptr, key_exponents_ptr, value_exponents_ptr, kv_head, block_rows, score_scale,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, SLIDING_WINDOW, SOFTCAP, IS_FP8, BLOCK_D, BLOCK_KV, False,
            MAY_SEE_NOTHING,
        )  # fmt: skip
    for tile_begin in tl.range(full_end, end, BLOCK_KV, num_stages=NUM_STAGES):
        highest, total, acc = attend_tile(
            query, position, highest, total, acc, tile_begin, kv_first, kv_end, table_row_ptr, key_cache_ptr,
            value_cache_ptr, key_exponents_ptr, value_exponents_ptr, kv_head, block_rows, score_scale,
            NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, SLIDING_WINDOW, SOFTCAP, IS_FP8, BLOCK_D, BLOCK_KV, True,
            MAY_SEE_NOTHING,
        )  # fmt: skip
    return highest, total, acc


@triton.jit
@no_type_check
def join_split(highest, total, acc, split_highest, split_total, split_acc):
    """Merge a split's softmax into that of the splits before it. A split of which a row sees nothing changes none of
    its bits."""
    higher = tl.maximum(highest, split_highest)
    known = tl.where(higher > float("-inf"), higher, 0)
    decay, share = tl.exp2(highest - known), tl.exp2(split_highest - known)
    total = tl.fma(split_total, share, total * decay)
    acc = tl.fma(split_acc, tl.broadcast_to(share[:, None], acc.shape), acc * decay[:, None])
    return higher, total, acc
