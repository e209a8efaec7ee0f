"""Prefill attention on Hopper with specialized warps: some only copy, some only compute. Twin of the kernel in
kernels/paged_attention_prefill.py, with the same contract and letters. For 16-bit queries and caches, head dims 64 and
128, blocks of at least 8 tokens, without window, soft cap or splits.

A program's tile of 128 rows is divided between two consumers, warp groups that compute. The producer, one warp, copies
keys and values of BLOCK_KV tokens with TMA, one copy per block and 64 dims, some stages ahead. Tiles come from the end
of what the rows see to its beginning, so the masked tiles come first.

As in FlashAttention-3 (Shah et al. 2024) a consumer has two products in flight: the scores of a tile, and the weights
of the previous tile times its values. While the tensor cores compute the second product, the scores become weights; and
one consumer's softmax runs beside the other's products. This needs Triton's Gluon, where the order is explicit. Gluon
has no interpreter; tests/kernels/gluon_emulator.py runs the kernel on a CPU.
"""

from __future__ import annotations

import math
from typing import Any, no_type_check

from torch import Tensor

from kernels.attention_config import PrefillUnitsConfig, num_multiprocessors
from kernels.dependent_launch import dependent_launch
from kernels.optional_gluon import GluonTensorDescriptor, barrier, copy_tile, gl, gluon, hopper, reinterpret, runs_gluon
from kernels.unit_parts import START_DEPENDENTS

_HEAD_DIMS = 64, 128
_ALIGNMENT = 16
_TILE_ROWS = 128
"""Of two consumers: a warp group's MMA takes 64 rows."""
_DIMS_OF_A_COPY = 64
"""128 bytes, the longest row of a swizzled tile."""


def takes(query: Tensor, key_cache: Tensor, value_cache: Tensor, config: PrefillUnitsConfig) -> bool:
    """Whether the device, Triton and the tensors' layout allow it."""
    if not runs_gluon(query):
        return False
    if query.dtype.itemsize != 2 or query.shape[2] not in _HEAD_DIMS:
        return False
    _, block_size, num_kv_heads, head_dim = key_cache.shape
    group, row = query.shape[1] // num_kv_heads, num_kv_heads * head_dim
    is_tiled = block_size % 8 == 0 and config.block_kv % block_size == 0 and group <= _TILE_ROWS
    return is_tiled and all(
        cache.data_ptr() % _ALIGNMENT == 0 and cache.stride(0) % row == 0 for cache in (key_cache, value_cache)
    )


if gl is not None:
    # Never stores. Its operands are computed before anything below that touches memory, including the wait for the MMA.
    _COMPUTED = gl.constexpr(
        "{ .reg .pred p; .reg .b32 a; mov.b32 a, 0; setp.eq.f32 p, $0, 0fBF800000; "
        "setp.eq.and.f32 p, $1, 0fBF800000, p; @p st.volatile.shared.f32 [a], $0; }"
    )
    _TWO_BF16 = gl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")
    _TWO_FP16 = gl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")


@gluon.jit
@no_type_check
def _sum_of(a, b):
    return a + b


@gluon.jit
@no_type_check
def _items_of(query_starts_ptr, base, num_seqs, TILE_TOKENS: gl.constexpr, WARPS: gl.constexpr):
    """For 128 sequences: their numbers, first rows, end rows and numbers of items. Every warp has all of them."""
    seqs = base + gl.arange(0, 128, layout=gl.BlockedLayout([4], [32], [WARPS], [0]))
    starts = gl.load(query_starts_ptr + seqs, mask=seqs < num_seqs, other=0)
    stops = gl.load(query_starts_ptr + seqs + 1, mask=seqs < num_seqs, other=0)
    return seqs, starts, stops, (stops - starts + TILE_TOKENS - 1) // TILE_TOKENS


@gluon.jit
@no_type_check
def _num_items(query_starts_ptr, num_seqs, TILE_TOKENS: gl.constexpr, WARPS: gl.constexpr):
    total = 0
    for base in range(0, num_seqs, 128):
        _, _, _, items = _items_of(query_starts_ptr, base, num_seqs, TILE_TOKENS, WARPS)
        total += gl.sum(items, 0)
    return total


@gluon.jit
@no_type_check
def _item(
    item, query_starts_ptr, context_lens_ptr, rows_ptr, num_seqs, TILE_TOKENS: gl.constexpr, BLOCK_KV: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """(first token, last token, position minus row number, context, row of the table, number of tiles, number of masked
    tiles). There are no tiles if the sequence is left out."""
    first_item = 0
    query_start = 0
    query_stop = 0
    context_len = 0
    table_row = 0
    before = 0
    for base in range(0, num_seqs, 128):
        seqs, starts, stops, items = _items_of(query_starts_ptr, base, num_seqs, TILE_TOKENS, WARPS)
        lens = gl.load(context_lens_ptr + seqs, mask=seqs < num_seqs, other=0)
        table_rows = gl.load(rows_ptr + seqs, mask=seqs < num_seqs, other=0).to(gl.int32)
        ends = before + gl.associative_scan(items, 0, _sum_of)
        is_its = (ends > item) & (ends - items <= item)
        first_item += gl.sum(gl.where(is_its, ends - items, 0), 0)
        query_start += gl.sum(gl.where(is_its, starts, 0), 0)
        query_stop += gl.sum(gl.where(is_its, stops, 0), 0)
        context_len += gl.sum(gl.where(is_its, lens, 0), 0)
        table_row += gl.sum(gl.where(is_its, table_rows, 0), 0)
        before += gl.sum(items, 0)
    ahead = context_len - query_stop
    first_token = query_start + (item - first_item) * TILE_TOKENS
    last_token = gl.minimum(first_token + TILE_TOKENS, query_stop) - 1
    num_tiles = (last_token + ahead) // BLOCK_KV + 1
    if table_row < 0:
        num_tiles = 0
    num_masked = gl.maximum(num_tiles - (first_token + ahead + 1) // BLOCK_KV, 1)
    return first_token, last_token, ahead, context_len, table_row, num_tiles, num_masked


@gluon.jit
@no_type_check
def _turn(first):
    """This program's item among those that programs take from `first` on. Rounds alternate in direction, so that the
    program with the longest item gets the shortest one next."""
    num_programs = gl.num_programs(0)
    place = gl.program_id(0)
    if (first // num_programs) % 2 == 1:
        place = num_programs - 1 - place
    return first + place


@gluon.jit
@no_type_check
def _packed(weights, DTYPE: gl.constexpr):
    """[M, N] fp32 -> [M, N / 2] words of two numbers. Loops carry words: the compiler would take pairs apart."""
    even, odd = gl.split(gl.reshape(weights, [weights.shape[0], weights.shape[1] // 2, 2]))
    CONVERT: gl.constexpr = _TWO_BF16 if gl.bfloat16 == DTYPE else _TWO_FP16
    return gl.inline_asm_elementwise(CONVERT, "=r,f,f", [even, odd], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
@no_type_check
def _unpacked(words, DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    even, odd = words.to(gl.int16).to(DTYPE, bitcast=True), (words >> 16).to(gl.int16).to(DTYPE, bitcast=True)
    numbers = gl.reshape(gl.join(even, odd), [words.shape[0], words.shape[1] * 2])
    return gl.convert_layout(numbers, LAYOUT, assert_trivial=True)


@gluon.jit
@no_type_check
def _weights(scores, highest, total, score_scale, position, tile_begin, MASKED: gl.constexpr):
    SCORES: gl.constexpr = scores.type.layout
    if MASKED:
        cell = gl.expand_dims(gl.arange(0, scores.shape[1], layout=gl.SliceLayout(0, SCORES)), 0)
        scores = gl.where(cell <= gl.expand_dims(position - tile_begin, 1), scores, float("-inf"))
    higher = gl.maximum(highest, gl.max(scores, 1) * score_scale)
    known = higher
    if MASKED:
        known = gl.where(higher > float("-inf"), higher, 0.0)
    decay = gl.exp2(highest - known)
    weights = gl.exp2(scores * score_scale - gl.expand_dims(known, 1))
    return higher, total * decay + gl.sum(weights, 1), decay, weights


@gluon.jit
@no_type_check
def _attend_tile(
    query, words, acc, highest, total, position, number, tile_begin, score_scale, keys, values, MASKED: gl.constexpr,
    SCORES: gl.constexpr, LEFT: gl.constexpr,
):  # fmt: skip
    """Scores of a tile; the previous tile is added: its weights (`words`) times its values. number: of this tile."""
    key_tiles, keys_full, keys_free = keys
    value_tiles, values_full, values_free = values
    DTYPE: gl.constexpr = key_tiles.dtype
    STAGES: gl.constexpr = key_tiles.shape[0]
    BLOCK_KV: gl.constexpr = key_tiles.shape[1]
    slot, slot_before = number % STAGES, (number - 1) % STAGES
    zeros = gl.zeros([words.shape[0], BLOCK_KV], gl.float32, layout=SCORES)
    hopper.mbarrier.wait(keys_full.index(slot), phase=(number // STAGES) & 1)
    scores = hopper.warpgroup_mma(query, key_tiles.index(slot).permute([1, 0]), zeros, use_acc=False, is_async=True)
    left = _unpacked(words, DTYPE, LEFT)
    hopper.mbarrier.wait(values_full.index(slot_before), phase=((number - 1) // STAGES) & 1)
    acc = hopper.warpgroup_mma(left, value_tiles.index(slot_before), acc, is_async=True)
    scores = hopper.warpgroup_mma_wait(1, deps=[scores])
    hopper.mbarrier.arrive(keys_free.index(slot), count=1)
    highest, total, decay, weights = _weights(scores, highest, total, score_scale, position, tile_begin, MASKED)
    total = gl.inline_asm_elementwise(_COMPUTED, "=f,=f,0,1", [total], dtype=gl.float32, is_pure=False, pack=2)
    acc, left, weights = hopper.warpgroup_mma_wait(0, deps=[acc, left, weights])
    hopper.mbarrier.arrive(values_free.index(slot_before), count=1)
    # Only now: if a product's registers were written while it is in flight, ptxas would wait for all products.
    words = _packed(weights, DTYPE)
    acc = acc * gl.expand_dims(gl.convert_layout(decay, gl.SliceLayout(1, acc.type.layout)), 1)
    return words, acc, highest, total


@gluon.jit
@no_type_check
def _first_weights(
    query, position, number, tile_begin, context_len, score_scale, keys, values, SCORES: gl.constexpr,
    MOVED: gl.constexpr,
):  # fmt: skip
    """Weights of the last tile. Its cells past the context are not written yet and may hold NaN."""
    key_tiles, keys_full, keys_free = keys
    value_tiles, values_full, _ = values
    ROWS: gl.constexpr = query.shape[0]
    BLOCK_KV: gl.constexpr = key_tiles.shape[1]
    STAGES: gl.constexpr = key_tiles.shape[0]
    slot, phase = number % STAGES, (number // STAGES) & 1
    scores = gl.zeros([ROWS, BLOCK_KV], gl.float32, layout=SCORES)
    hopper.mbarrier.wait(keys_full.index(slot), phase=phase)
    scores = hopper.warpgroup_mma(query, key_tiles.index(slot).permute([1, 0]), scores, use_acc=False, is_async=True)
    scores = hopper.warpgroup_mma_wait(0, deps=[scores])
    hopper.mbarrier.arrive(keys_free.index(slot), count=1)
    if tile_begin + BLOCK_KV > context_len:
        # Both consumers store the same values.
        hopper.mbarrier.wait(values_full.index(slot), phase=phase)
        cell = tile_begin + gl.arange(0, BLOCK_KV, layout=gl.SliceLayout(1, MOVED))
        written = value_tiles.index(slot).load(MOVED)
        barrier()
        value_tiles.index(slot).store(gl.where(gl.expand_dims(cell < context_len, 1), written, 0.0))
        hopper.fence_async_shared()
        barrier()
    highest = gl.full([ROWS], float("-inf"), gl.float32, layout=gl.SliceLayout(1, SCORES))
    total = gl.zeros([ROWS], gl.float32, layout=gl.SliceLayout(1, SCORES))
    highest, total, _, weights = _weights(scores, highest, total, score_scale, position, tile_begin, True)
    return _packed(weights, key_tiles.dtype), highest, total


@gluon.jit
@no_type_check
def _attend_item(
    first_row, query_ptr, sinks_ptr, out_ptr, query, keys, values, first_token, last_token, ahead, context_len, kv_head,
    query_stride_token, num_tiles, num_masked, done, score_scale, NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr,
    HAS_SINKS: gl.constexpr,
):  # fmt: skip
    """A consumer's rows of an item, from first_row on. done: how many tiles the program has had before."""
    ROWS: gl.constexpr = query.shape[0]
    HEAD_DIM: gl.constexpr = query.shape[1]
    BLOCK_KV: gl.constexpr = keys[0].shape[1]
    MOVED: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KV, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, MOVED))
    token = first_token + row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = gl.expand_dims(token <= last_token, 1)
    dim = gl.expand_dims(gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, MOVED)), 0)
    query_offset = token.to(gl.int64) * query_stride_token + head * HEAD_DIM
    query.store(gl.load(query_ptr + gl.expand_dims(query_offset, 1) + dim, mask=is_row, other=0.0))
    hopper.fence_async_shared()
    barrier()

    position = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
    position = first_token + ahead + position // GROUP
    last_tile = num_tiles - 1
    words, highest, total = _first_weights(
        query, position, done, last_tile * BLOCK_KV, context_len, score_scale, keys, values, SCORES, MOVED
    )
    acc = gl.zeros([ROWS, HEAD_DIM], gl.float32, layout=SUMS)
    for i in range(1, num_masked):
        words, acc, highest, total = _attend_tile(
            query, words, acc, highest, total, position, done + i, (last_tile - i) * BLOCK_KV, score_scale, keys,
            values, True, SCORES, LEFT,
        )  # fmt: skip
    for i in range(num_masked, num_tiles):
        words, acc, highest, total = _attend_tile(
            query, words, acc, highest, total, position, done + i, (last_tile - i) * BLOCK_KV, score_scale, keys,
            values, False, SCORES, LEFT,
        )  # fmt: skip
    value_tiles, values_full, values_free = values
    STAGES: gl.constexpr = value_tiles.shape[0]
    slot, phase = (done + last_tile) % STAGES, ((done + last_tile) // STAGES) & 1
    hopper.mbarrier.wait(values_full.index(slot), phase=phase)
    left = _unpacked(words, query.dtype, LEFT)
    acc = hopper.warpgroup_mma(left, value_tiles.index(slot), acc, is_async=True)
    acc, left = hopper.warpgroup_mma_wait(0, deps=[acc, left])
    hopper.mbarrier.arrive(values_free.index(slot), count=1)

    if HAS_SINKS:
        of_row = kv_head * GROUP + (first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))) % GROUP
        total += gl.exp2(gl.load(sinks_ptr + of_row).to(gl.float32) * 1.4426950408889634 - highest)
    acc = acc * gl.expand_dims(gl.convert_layout(1.0 / total, gl.SliceLayout(1, SUMS)), 1)
    query.store(acc.to(query.dtype))
    barrier()
    out_offset = (token.to(gl.int64) * (NUM_KV_HEADS * GROUP) + head) * HEAD_DIM
    gl.store(out_ptr + gl.expand_dims(out_offset, 1) + dim, query.load(MOVED), mask=is_row)


@gluon.jit
@no_type_check
def _consume(
    WHO: gl.constexpr, query_ptr, sinks_ptr, out_ptr, queries, keys, values, query_starts_ptr, context_lens_ptr,
    rows_ptr, num_seqs, query_stride_token, score_scale, NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr,
    TILE_TOKENS: gl.constexpr, HAS_SINKS: gl.constexpr,
):  # fmt: skip
    """A warp group that computes: its rows of every item of this program."""
    ROWS: gl.constexpr = queries.shape[1]
    BLOCK_KV: gl.constexpr = keys[0].shape[1]
    done = 0
    count = _num_items(query_starts_ptr, num_seqs, TILE_TOKENS, 4) * NUM_KV_HEADS
    for first in range(0, count, gl.num_programs(0)):
        number = _turn(first)
        if number < count:
            first_token, last_token, ahead, context_len, _, num_tiles, num_masked = _item(
                (count - 1 - number) // NUM_KV_HEADS, query_starts_ptr, context_lens_ptr, rows_ptr, num_seqs,
                TILE_TOKENS, BLOCK_KV, 4,
            )  # fmt: skip
            if num_tiles > 0:
                _attend_item(
                    WHO * ROWS, query_ptr, sinks_ptr, out_ptr, queries.index(WHO), keys, values, first_token,
                    last_token, ahead, context_len, number % NUM_KV_HEADS, query_stride_token, num_tiles, num_masked,
                    done, score_scale, NUM_KV_HEADS, GROUP, HAS_SINKS,
                )  # fmt: skip
            done += num_tiles


@gluon.jit
@no_type_check
def _blocks_of_tile(table_row_ptr, first, last, COUNT: gl.constexpr):
    blocks = (gl.load(table_row_ptr + gl.minimum(first, last)),)
    for b in gl.static_range(1, COUNT):
        blocks += (gl.load(table_row_ptr + gl.minimum(first + b, last)),)
    return blocks


@gluon.jit
@no_type_check
def _ask_for(desc, blocks, block_cells, first_column, full, parts, slot, HALVES: gl.constexpr):
    """Copy a tile into a slot, its first 64 dims before the others."""
    COUNT: gl.constexpr = len(blocks)
    hopper.mbarrier.expect(full, COUNT * HALVES * desc.block_type.nbytes)
    for b in gl.static_range(COUNT):
        for half in gl.static_range(HALVES):
            place = parts.index((slot * HALVES + half) * COUNT + b)
            copy_tile(desc, [blocks[b] * block_cells, first_column + 64 * half], full, place)


@gluon.jit
@no_type_check
def _produce(
    keys_desc, values_desc, block_table_ptr, keys, values, block_cells, table_stride, query_starts_ptr,
    context_lens_ptr, rows_ptr, num_seqs, NUM_KV_HEADS: gl.constexpr, TILE_TOKENS: gl.constexpr,
):  # fmt: skip
    """The warp that copies. Blocks of a tile past the sequence's last block are read as that block again."""
    key_tiles, keys_full, keys_free = keys
    value_tiles, values_full, values_free = values
    STAGES: gl.constexpr = key_tiles.shape[0]
    BLOCK_KV: gl.constexpr = key_tiles.shape[1]
    HEAD_DIM: gl.constexpr = key_tiles.shape[2]
    BLOCKS: gl.constexpr = BLOCK_KV // keys_desc.block_shape[0]
    HALVES: gl.constexpr = HEAD_DIM // 64
    PARTS: gl.constexpr = [STAGES * HALVES * BLOCKS, keys_desc.block_shape[0], 64]
    LAYOUT: gl.constexpr = keys_desc.layout
    key_parts = reinterpret(key_tiles, key_tiles.dtype, PARTS, LAYOUT)
    value_parts = reinterpret(value_tiles, value_tiles.dtype, PARTS, LAYOUT)
    done = 0
    count = _num_items(query_starts_ptr, num_seqs, TILE_TOKENS, 1) * NUM_KV_HEADS
    for first in range(0, count, gl.num_programs(0)):
        number = _turn(first)
        if number < count:
            _, _, _, context_len, table_row, num_tiles, _ = _item(
                (count - 1 - number) // NUM_KV_HEADS, query_starts_ptr, context_lens_ptr, rows_ptr, num_seqs,
                TILE_TOKENS, BLOCK_KV, 1,
            )  # fmt: skip
            if num_tiles > 0:
                column = number % NUM_KV_HEADS * HEAD_DIM
                table_row_ptr = block_table_ptr + table_row * table_stride
                last_block = (context_len - 1) // keys_desc.block_shape[0]
                blocks = _blocks_of_tile(table_row_ptr, (num_tiles - 1) * BLOCKS, last_block, BLOCKS)
                for i in range(num_tiles):
                    slot, phase = (done + i) % STAGES, ((done + i) // STAGES) & 1
                    next_first = gl.maximum(num_tiles - 2 - i, 0) * BLOCKS
                    next_blocks = _blocks_of_tile(table_row_ptr, next_first, last_block, BLOCKS)
                    hopper.mbarrier.wait(keys_free.index(slot), phase=phase ^ 1)
                    _ask_for(keys_desc, blocks, block_cells, column, keys_full.index(slot), key_parts, slot, HALVES)
                    hopper.mbarrier.wait(values_free.index(slot), phase=phase ^ 1)
                    _ask_for(
                        values_desc, blocks, block_cells, column, values_full.index(slot), value_parts, slot, HALVES
                    )
                    blocks = next_blocks
            done += num_tiles


@gluon.jit(
    do_not_specialize=["num_seqs", "block_cells", "table_stride"],
    do_not_specialize_on_alignment=["block_table_ptr", "rows_ptr", "query_starts_ptr", "context_lens_ptr"],
)
@no_type_check
def _prefill_units_kernel(
    query_ptr, keys_desc, values_desc, block_table_ptr, rows_ptr, query_starts_ptr, context_lens_ptr, sinks_ptr,
    out_ptr, num_seqs, query_stride_token, block_cells, table_stride, score_scale, NUM_KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, HAS_SINKS: gl.constexpr, BLOCK_KV: gl.constexpr,
    NUM_STAGES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Programs share the items of all kv heads, numbered as in _paged_attention_prefill_kernel. As soon as some are
    through, the next kernel may have their multiprocessors."""
    if PDL:
        gl.inline_asm_elementwise(START_DEPENDENTS, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    TILE_TOKENS: gl.constexpr = 2 * 64 // GROUP
    BARRIERS: gl.constexpr = hopper.mbarrier.MBarrierLayout()
    queries = gl.allocate_shared_memory(keys_desc.dtype, [2, 64, HEAD_DIM], keys_desc.layout)
    key_tiles = gl.allocate_shared_memory(keys_desc.dtype, [NUM_STAGES, BLOCK_KV, HEAD_DIM], keys_desc.layout)
    value_tiles = gl.allocate_shared_memory(keys_desc.dtype, [NUM_STAGES, BLOCK_KV, HEAD_DIM], keys_desc.layout)
    keys_full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], BARRIERS)
    keys_free = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], BARRIERS)
    values_full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], BARRIERS)
    values_free = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], BARRIERS)
    for i in gl.static_range(NUM_STAGES):
        hopper.mbarrier.init(keys_full.index(i), count=1)
        hopper.mbarrier.init(keys_free.index(i), count=2)
        hopper.mbarrier.init(values_full.index(i), count=1)
        hopper.mbarrier.init(values_free.index(i), count=2)
    hopper.fence_async_shared()
    keys = key_tiles, keys_full, keys_free
    values = value_tiles, values_full, values_free
    gl.warp_specialize(
        [
            (_consume, (
                0, query_ptr, sinks_ptr, out_ptr, queries, keys, values, query_starts_ptr, context_lens_ptr, rows_ptr,
                num_seqs, query_stride_token, score_scale, NUM_KV_HEADS, GROUP, TILE_TOKENS, HAS_SINKS,
            )),
            (_consume, (
                1, query_ptr, sinks_ptr, out_ptr, queries, keys, values, query_starts_ptr, context_lens_ptr, rows_ptr,
                num_seqs, query_stride_token, score_scale, NUM_KV_HEADS, GROUP, TILE_TOKENS, HAS_SINKS,
            )),
            (_produce, (
                keys_desc, values_desc, block_table_ptr, keys, values, block_cells, table_stride, query_starts_ptr,
                context_lens_ptr, rows_ptr, num_seqs, NUM_KV_HEADS, TILE_TOKENS,
            )),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


def prefill_units_triton(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    rows: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    max_query_len: int,
    scale: float,
    out: Tensor,
    sinks: Tensor | None,
    config: PrefillUnitsConfig,
) -> None:
    """On CUDA tensors of sm_90. block_table to max_query_len: as in `PrefillBatch`."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, num_seqs = key_cache.shape[2], context_lens.shape[0]
    block_size = key_cache.shape[1]
    assert scale > 0 and head_dim in _HEAD_DIMS and num_heads // num_kv_heads <= _TILE_ROWS
    assert query.dtype.itemsize == 2 and config.block_kv % block_size == 0 and block_size % 8 == 0
    if num_tokens == 0 or num_seqs == 0:
        return
    tile_tokens = _TILE_ROWS // (num_heads // num_kv_heads)
    num_items = min(-(-num_tokens // tile_tokens) + num_seqs, num_seqs * -(-max_query_len // tile_tokens))
    layout = gl.NVMMASharedLayout(128, 16, 2)
    num_programs = min(num_kv_heads * num_items, num_multiprocessors(query.device))
    _prefill_units_kernel[(num_programs,)](
        query,
        _cells_of(key_cache, layout),
        _cells_of(value_cache, layout),
        block_table,
        rows,
        query_starts,
        context_lens,
        query if sinks is None else sinks,
        out,
        num_seqs,
        query.stride(0),
        key_cache.stride(0) // (num_kv_heads * head_dim),
        block_table.stride(0),
        scale * math.log2(math.e),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        HAS_SINKS=sinks is not None,
        BLOCK_KV=config.block_kv,
        NUM_STAGES=config.num_stages,
        PDL=dependent_launch(query.device)["PDL"],
        num_warps=4,
        maxnreg=168,  # 64 k registers for 12 warps; the consumers then get what the producer returns
        enable_fp_fusion=True,
    )


def _cells_of(cache: Tensor, layout: Any) -> Any:
    """[cells, K * D]: a block's cells are adjacent; blocks follow at a fixed stride, with other
    layers' cells between."""
    num_blocks, block_size, row = cache.shape[0], cache.shape[1], cache.shape[2] * cache.shape[3]
    cells = cache.as_strided(((num_blocks - 1) * (cache.stride(0) // row) + block_size, row), (row, 1))
    return GluonTensorDescriptor.from_tensor(cells, [block_size, _DIMS_OF_A_COPY], layout)
