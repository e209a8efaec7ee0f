"""kernels/paged_attention_prefill.py as a compiled loop: bf16 products of tiles (AVX512-bf16) that stay in the caches.

Tensors and letters as there, in bf16. An item is some tokens of one sequence with the query heads of one kv head; these
are its rows. Tiles of cells are rearranged once for all rows of an item, so that one instruction multiplies pairs of
numbers for 16 cells, or for 16 dims; the softmax is online (Milakov and Gimelshein 2018). Tiles begin at multiples of
their size, so a row's result does not depend on how a prompt is cut into chunks. Scores and sums are fp32;
probabilities are rounded to bf16 before they are multiplied by the values.
"""

from __future__ import annotations

from functools import cache
from typing import no_type_check

import numpy as np
import torch
from numba import njit
from torch import Tensor

from kernels.loops.bf16 import bf16_at, count_up, int32_at, int64_at, narrow
from kernels.loops.paged_heads import check_heads
from kernels.loops.team import Loop, float_bits
from kernels.loops.vector_code import F32, I64, LANES, Value, VectorCode, vector_function

_TILE = 128  # cells
_ROWS = 6  # at once: with 4 vectors each their sums take 24 of 32 registers
_VECTORS = 4
_CELLS = _VECTORS * LANES
_ITEM_ROWS = 192  # rows per item: enough to pay for rearranging keys and values
_ITEMS_A_THREAD = 4

_STATE = 4  # float32 numbers per row: highest score, sum of exponentials, decay of the last tile's sums
_HIGHEST, _TOTAL, _DECAY = 0, 4, 8  # bytes


def _write_scores(code: VectorCode, head_dim: int, query: Value, keys: Value, scores: Value) -> None:
    """_ROWS rows of bf16 [head_dim] times _CELLS cells of keys -> fp32 scores; keys and scores have rows of _TILE."""
    builder = code.builder
    rows, vectors = range(_ROWS), range(_VECTORS)
    with code.repeated(I64(head_dim // 2), [code.zeros()] * (_ROWS * _VECTORS)) as pair:
        address = builder.add(keys, builder.mul(pair.index, I64(4 * _TILE)))
        query_pair = builder.add(query, builder.mul(pair.index, I64(4)))
        cells = [code.pairs(address, 4 * LANES * v) for v in vectors]
        sums = list(pair.carried)
        for r in rows:
            factors = code.pair_for_all(query_pair, 2 * head_dim * r)
            for v in vectors:
                place = r * _VECTORS + v
                sums[place] = code.add_pair_products(sums[place], cells[v], factors)
        pair.result = sums
    for r in rows:
        for v in vectors:
            code.store_floats(pair.result[r * _VECTORS + v], scores, 4 * (r * _TILE + v * LANES))


def _write_soften(
    code: VectorCode,
    scores: Value,
    weights: Value,
    begin: Value,
    end: Value,
    num_vectors: Value,
    scale: Value,
    state: Value,
) -> None:
    """One row's scores of a tile -> its bf16 weights relative to the highest score so far; those outside cells begin ..
    end - 1 become 0. scale: its address."""
    builder = code.builder
    factor, lowest = code.float_for_all(scale), code.floats_for_all(-np.inf)
    first, stop = code.ints_for_all(begin), code.ints_for_all(end)

    def is_seen(vector: Value) -> Value:
        cell = builder.add(code.lane_numbers(), code.ints_for_all(builder.mul(vector, I64(LANES))))
        return builder.and_(builder.icmp_signed(">=", cell, first), builder.icmp_signed("<", cell, stop))

    with code.repeated(num_vectors, [lowest]) as vector:
        place = builder.add(scores, builder.mul(vector.index, I64(4 * LANES)))
        score = builder.select(is_seen(vector.index), builder.fmul(code.floats(place), factor), lowest)
        code.store_floats(score, place)
        vector.result = [code.larger(score, vector.carried[0])]
    before = code.float_at(state, _HIGHEST)
    highest = code.larger(code.largest_of(vector.result[0]), before)
    code.store_float(highest, state, _HIGHEST)
    is_known = builder.fcmp_ordered(">", highest, F32(-np.inf))  # a row may see nothing of its first tiles
    known = code.for_all(builder.select(is_known, highest, F32(0)))
    with code.repeated(num_vectors, [code.zeros()]) as vector:
        score = code.floats(builder.add(scores, builder.mul(vector.index, I64(4 * LANES))))
        weight = builder.select(is_seen(vector.index), code.exp(builder.fsub(score, known)), code.zeros())
        code.store_narrowed(weight, builder.add(weights, builder.mul(vector.index, I64(2 * LANES))))
        vector.result = [builder.fadd(vector.carried[0], weight)]
    decay = code.exp(builder.fsub(code.for_all(before), known))
    code.store_float(builder.extract_element(decay, I64(0)), state, _DECAY)
    total = builder.fmul(code.float_at(state, _TOTAL), code.float_at(state, _DECAY))
    code.store_float(builder.fadd(total, code.sum_of(vector.result[0])), state, _TOTAL)


def _write_add_values(
    code: VectorCode,
    num_vectors: int,
    head_dim: int,
    weights: Value,
    values: Value,
    num_pairs: Value,
    state: Value,
    sums: Value,
) -> None:
    """The fp32 sums of _ROWS rows decay, then the weighted values of some pairs of cells are added, for some vectors of
    dims.

    weights: in rows of _TILE. values: in pairs, head_dim pairs per row.
    """
    builder = code.builder
    rows, vectors = range(_ROWS), range(num_vectors)
    places = [4 * (r * head_dim + v * LANES) for r in rows for v in vectors]
    decays = [code.float_for_all(state, 4 * _STATE * r + _DECAY) for r in rows]
    decayed = [builder.fmul(code.floats(sums, p), decays[i // num_vectors]) for i, p in enumerate(places)]
    with code.repeated(num_pairs, decayed) as pair:
        address = builder.add(values, builder.mul(pair.index, I64(4 * head_dim)))
        weight_pair = builder.add(weights, builder.mul(pair.index, I64(4)))
        dims = [code.pairs(address, 4 * LANES * v) for v in vectors]
        total = list(pair.carried)
        for r in rows:
            factors = code.pair_for_all(weight_pair, 2 * _TILE * r)
            for v in vectors:
                place = r * num_vectors + v
                total[place] = code.add_pair_products(total[place], dims[v], factors)
        pair.result = total
    for place, total in zip(places, pair.result, strict=True):
        code.store_floats(total, sums, place)


_scores = vector_function(_write_scores)
_soften = vector_function(_write_soften)
_add_values = vector_function(_write_add_values)


@njit(error_model="numpy")
@no_type_check
def _find_item(number, starts, item_tokens):
    """(sequence, its first token, number of tokens) of an item. Items are numbered from the batch's end backwards,
    because the longest contexts are at the ends of prompts. No tokens beyond the last item."""
    for seq in range(len(starts) - 2, -1, -1):
        count = (np.int64(starts[seq + 1]) - starts[seq] + item_tokens - 1) // item_tokens
        if number < count:
            first = starts[seq] + (count - 1 - number) * item_tokens
            return seq, first, min(item_tokens, starts[seq + 1] - first)
        number -= count
    return 0, np.int64(0), np.int64(0)


@njit(error_model="numpy")
@no_type_check
def _gather_queries(address, stride, group, num_rows, queries):
    """Gathers rows of queries [rows, head_dim / 2] from the heads of one group in consecutive tokens; rows past
    num_rows repeat the last."""
    half = queries.shape[1]
    for row in range(queries.shape[0]):
        token, head = min(row, num_rows - 1) // group, row % group
        source = int32_at(address + token * stride + 4 * head * half, half)
        for d in range(half):
            queries[row, d] = source[d]


@njit(error_model="numpy")
@no_type_check
def _rearrange(keys, values, places, key_pairs, value_pairs):
    """One head's keys [cells, head_dim / 2] and values at these places -> key_pairs [head_dim / 2, _TILE], with two
    dims of a cell side by side, and value_pairs [_TILE / 2, head_dim], with one dim of two cells; missing cells are 0.
    """
    half, head_dim = key_pairs.shape[0], value_pairs.shape[1]
    for i in range(places.size):
        key = int32_at(keys + places[i], half)
        for d in range(half):
            key_pairs[d, i] = key[d]
    for i in range(0, places.size, 2):
        even = bf16_at(values + places[i], head_dim)
        odd = bf16_at(values + places[min(i + 1, places.size - 1)], head_dim)
        mask = np.uint32(0xFFFF0000) if i + 1 < places.size else np.uint32(0)
        for d in range(head_dim):
            value_pairs[i // 2, d] = np.int32(np.uint32(even[d]) | (np.uint32(odd[d]) << np.uint32(16)) & mask)


@njit(error_model="numpy")
@no_type_check
def _write_rows(sums, totals, num_rows, group, address, token_stride):
    """Writes the rows of some tokens' heads of one group, each divided by its total."""
    head_dim = sums.shape[1]
    for row in range(num_rows):
        there = bf16_at(address + row // group * token_stride + 2 * (row % group) * head_dim, head_dim)
        share = np.float32(1) / totals[row]
        for d in range(head_dim):
            there[d] = narrow(sums[row, d] * share)


@cache
def _attend(group: int, head_dim: int) -> Loop:
    """group: query heads per kv head."""
    num_vectors = head_dim // LANES
    at_once = max(v for v in range(1, _VECTORS + 1) if num_vectors % v == 0)

    @no_type_check
    def attend(arguments):
        """Item: of one sequence and kv head, `item_tokens` tokens."""
        a = int64_at(arguments, 19)
        num_items, query, query_stride, keys, values, block_stride = a[1], a[2], a[3], a[4], a[5], a[6]
        tables, table_stride, out, block_size, num_kv_heads, window = a[7], a[8], a[12], a[13], a[14], a[15]
        scale, num_seqs, item_tokens = arguments + 8 * 16, a[17], a[18]
        rows, starts, lens = int64_at(a[9], num_seqs), int32_at(a[10], num_seqs + 1), int32_at(a[11], num_seqs)
        cell_stride = 2 * num_kv_heads * head_dim
        most_rows = (item_tokens * group + _ROWS - 1) // _ROWS * _ROWS
        queries, sums = np.empty((most_rows, head_dim // 2), np.int32), np.empty((most_rows, head_dim), np.float32)
        states = np.empty((most_rows, _STATE), np.float32)
        key_pairs, value_pairs = np.zeros((head_dim // 2, _TILE), np.int32), np.empty((_TILE // 2, head_dim), np.int32)
        scores, weights = np.empty((_ROWS, _TILE), np.float32), np.empty((_ROWS, _TILE), np.uint16)
        places = np.empty(_TILE, np.int64)
        item = count_up(arguments)
        while item < num_items:
            kv_head = item % num_kv_heads
            seq, first, num_tokens = _find_item(item // num_kv_heads, starts, item_tokens)
            position = np.int64(lens[seq]) - starts[seq + 1] + first  # of the first token
            cells_end = position + num_tokens if num_tokens > 0 else 0
            num_rows, head = num_tokens * group, 2 * kv_head * head_dim
            if num_tokens > 0:
                _gather_queries(
                    query + 2 * first * query_stride + head * group, 2 * query_stride, group, num_rows, queries
                )
                sums[:] = 0
                states[:, 0] = -np.inf
                states[:, 1] = 0
            table = int32_at(tables + 4 * rows[seq] * table_stride, table_stride)
            lowest = max(0, position + 1 - window) if window > 0 else 0  # first cell that any row sees
            begin = lowest // _TILE * _TILE
            while begin < cells_end:
                num_cells = min(_TILE, cells_end - begin)
                for i in range(num_cells):
                    cell = max(begin + i, lowest)
                    block = np.int64(table[cell // block_size])
                    places[i] = 2 * block * block_stride + cell % block_size * cell_stride + head
                _rearrange(keys, values, places[:num_cells], key_pairs, value_pairs)
                for row in range(0, num_rows, _ROWS):
                    seen = min(num_cells, position + (min(row + _ROWS, num_rows) - 1) // group + 1 - begin)
                    for cell in range(0, seen, _CELLS):
                        cell_keys = key_pairs.ctypes.data + 4 * cell
                        _scores(head_dim, queries[row].ctypes.data, cell_keys, scores.ctypes.data + 4 * cell)
                    for r in range(_ROWS if seen > 0 else 0):
                        own = position + min(row + r, num_rows - 1) // group + 1 - begin
                        since = max(0, own - window) if window > 0 else 0
                        score, weight = scores[r].ctypes.data, weights[r].ctypes.data
                        num_seen_vectors = (seen + LANES - 1) // LANES
                        _soften(score, weight, since, own, num_seen_vectors, scale, states[row + r].ctypes.data)
                    for v in range(0, num_vectors if seen > 0 else 0, at_once):
                        value, total = value_pairs.ctypes.data + 4 * LANES * v, sums[row].ctypes.data + 4 * LANES * v
                        state, num_pairs = states[row].ctypes.data, (seen + 1) // 2
                        _add_values(at_once, head_dim, weights.ctypes.data, value, num_pairs, state, total)
                begin += _TILE
            there = out + 2 * (first * num_kv_heads + kv_head) * group * head_dim
            _write_rows(sums, states[:, 1], num_rows, group, there, num_kv_heads * group * 2 * head_dim)
            item = count_up(arguments)

    return Loop(attend)


def paged_attention_prefill(
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
    sliding_window: int | None,
) -> None:
    """block_table, rows, query_starts, context_lens, max_query_len: as in `PrefillBatch`."""
    num_tokens, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    num_seqs, group = context_lens.shape[0], num_heads // num_kv_heads
    check_heads(query, key_cache, value_cache, out)
    assert query_starts.is_contiguous() and context_lens.is_contiguous() and rows.is_contiguous()

    def items(tokens: int) -> int:
        return num_kv_heads * min(-(-num_tokens // tokens) + num_seqs, num_seqs * -(-max_query_len // tokens))

    item_tokens = max(1, _ITEM_ROWS // group)
    while item_tokens > 8 and items(item_tokens) < _ITEMS_A_THREAD * torch.get_num_threads():
        item_tokens //= 2
    _attend(group, head_dim)(
        True,
        items(item_tokens),
        query.data_ptr(),
        query.stride(0),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        key_cache.stride(0),
        block_table.data_ptr(),
        block_table.stride(0),
        rows.data_ptr(),
        query_starts.data_ptr(),
        context_lens.data_ptr(),
        out.data_ptr(),
        block_size,
        num_kv_heads,
        sliding_window or 0,
        float_bits(scale),
        num_seqs,
        item_tokens,
    )
