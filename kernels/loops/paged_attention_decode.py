"""kernels/paged_attention_decode.py as a compiled loop: keys and values are read in place, once for all query heads
that share them, and nothing is copied.

Tensors and letters as there, in bf16. Computed by tiles of cells with an online softmax (Milakov and Gimelshein 2018).
Probabilities stay in fp32.
"""

from __future__ import annotations

from functools import cache
from typing import no_type_check

import numpy as np
from numba import types
from torch import Tensor

from kernels.loops.bf16 import bf16_at, count_up, exp, float_from_bits, int32_at, int64_at, narrow
from kernels.loops.paged_heads import check_heads
from kernels.loops.team import Loop, float_bits
from kernels.loops.vector_code import I64, LANES, Value, VectorCode, vector_function

_TILE = 128  # cells
_MAX_SUMS = 16  # vectors, of 32 registers


def _write_head_product(code: VectorCode, head_dim: int, query: Value, key: Value) -> Value:
    """The dot product of two bf16 heads, float32."""
    total = code.zeros()
    for offset in range(0, 2 * head_dim, 4 * LANES):
        total = code.add_pair_products(total, code.pairs(query, offset), code.pairs(key, offset))
    return code.sum_of(total)


def _write_fetch_head(code: VectorCode, head_dim: int, head: Value) -> None:
    """Prefetches a head."""
    for offset in range(0, 2 * head_dim, 64):
        code.prefetch(head, offset)


def _write_add_values(
    code: VectorCode,
    num_heads: int,
    head_dim: int,
    sums: Value,
    value: Value,
    stride: Value,
    weights: Value,
    num_cells: Value,
) -> None:
    """Adds the bf16 values of consecutive cells, times their weights, to some heads' fp32 sums [num_heads, head_dim].

    stride: bytes from cell to cell. weights: of the first head and first cell, fp32; the next head's are _TILE further.
    """
    builder, vectors = code.builder, range(head_dim // LANES)
    places = [4 * (h * head_dim + v * LANES) for h in range(num_heads) for v in vectors]
    with code.repeated(num_cells, [code.floats(sums, place) for place in places]) as cell:
        address = builder.add(value, builder.mul(cell.index, stride))
        weight = builder.add(weights, builder.mul(cell.index, I64(4)))
        values = [code.widened(address, 2 * LANES * v) for v in vectors]
        factors = [code.float_for_all(weight, 4 * _TILE * h) for h in range(num_heads)]
        cell.result = [
            code.add_products(total, factors[i // len(vectors)], values[i % len(vectors)])
            for i, total in enumerate(cell.carried)
        ]
    for place, total in zip(places, cell.result, strict=True):
        code.store_floats(total, sums, place)


_head_product = vector_function(_write_head_product, types.float32)
_fetch_head = vector_function(_write_fetch_head)
_add_values = vector_function(_write_add_values)


@cache
def _attend(group: int, head_dim: int) -> Loop:
    """group: query heads per kv head."""
    at_once = max(h for h in range(1, group + 1) if group % h == 0 and (h == 1 or h * head_dim <= _MAX_SUMS * LANES))

    @no_type_check
    def attend(arguments):
        """Item: one kv head of one sequence."""
        a = int64_at(arguments, 17)
        num_items, query, query_stride, keys, values, block_stride = a[1], a[2], a[3], a[4], a[5], a[6]
        tables, table_stride, out, block_size, num_kv_heads, window = a[7], a[8], a[11], a[12], a[13], a[14]
        scale = float_from_bits(np.int32(a[15]))
        num_seqs = a[16]
        rows, lens = int64_at(a[9], num_seqs), int32_at(a[10], num_seqs)
        cell_stride = 2 * num_kv_heads * head_dim
        weights = np.empty((group, _TILE), np.float32)
        sums = np.empty((group, head_dim), np.float32)
        highest, totals = np.empty(group, np.float32), np.empty(group, np.float32)
        item = count_up(arguments)
        while item < num_items:
            seq, kv_head = item // num_kv_heads, item % num_kv_heads
            length = np.int64(lens[seq])
            begin = max(0, length - window) if window > 0 else 0
            table = int32_at(tables + 4 * rows[seq] * table_stride, table_stride)
            head = 2 * kv_head * head_dim
            first_query = query + 2 * seq * query_stride + head * group
            for g in range(group):
                highest[g], totals[g] = -np.inf, 0
                for d in range(head_dim):
                    sums[g, d] = 0
            while begin < length:
                end = min(length, begin + _TILE)
                cell = begin
                while cell < end:
                    num_cells = min(end - cell, block_size - cell % block_size)
                    place = 2 * np.int64(table[cell // block_size]) * block_stride + head
                    following = min(length - 1, cell + num_cells) // block_size
                    key_ahead = keys + 2 * np.int64(table[following]) * block_stride + head
                    place += cell % block_size * cell_stride
                    for i in range(num_cells):
                        _fetch_head(head_dim, key_ahead + i * cell_stride)
                        _fetch_head(head_dim, values + place + i * cell_stride)
                        for g in range(group):
                            query_head = first_query + 2 * g * head_dim
                            product = _head_product(head_dim, query_head, keys + place + i * cell_stride)
                            weights[g, cell - begin + i] = scale * product
                    cell += num_cells
                for g in range(group):
                    higher = highest[g]
                    for i in range(end - begin):
                        higher = weights[g, i] if weights[g, i] > higher else higher
                    total = np.float32(0)
                    for i in range(end - begin):
                        weights[g, i] = exp(weights[g, i] - higher)
                        total += weights[g, i]
                    decay = exp(highest[g] - higher) if begin > 0 else np.float32(0)
                    totals[g] = totals[g] * decay + total
                    for d in range(head_dim):
                        sums[g, d] *= decay
                    highest[g] = higher
                cell = begin
                while cell < end:
                    num_cells = min(end - cell, block_size - cell % block_size)
                    block = np.int64(table[cell // block_size])
                    value = values + 2 * block * block_stride + cell % block_size * cell_stride + head
                    for g in range(0, group, at_once):
                        weight = weights.ctypes.data + 4 * (g * _TILE + cell - begin)
                        place = sums.ctypes.data + 4 * g * head_dim
                        _add_values(at_once, head_dim, place, value, cell_stride, weight, num_cells)
                    cell += num_cells
                begin = end
            first_out = bf16_at(out + 2 * (seq * num_kv_heads + kv_head) * group * head_dim, group * head_dim)
            for g in range(group):
                share = np.float32(1) / totals[g] if length > 0 else np.float32(0)
                for d in range(head_dim):
                    first_out[g * head_dim + d] = narrow(sums[g, d] * share)
            item = count_up(arguments)

    return Loop(attend)


def paged_attention_decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    rows: Tensor,
    scale: float,
    out: Tensor,
    sliding_window: int | None,
) -> None:
    """block_table, context_lens, rows: as in `DecodeBatch`."""
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    check_heads(query, key_cache, value_cache, out)
    assert context_lens.is_contiguous() and rows.is_contiguous()
    _attend(num_heads // num_kv_heads, head_dim)(
        True,
        num_seqs * num_kv_heads,
        query.data_ptr(),
        query.stride(0),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        key_cache.stride(0),
        block_table.data_ptr(),
        block_table.stride(0),
        rows.data_ptr(),
        context_lens.data_ptr(),
        out.data_ptr(),
        block_size,
        num_kv_heads,
        sliding_window or 0,
        float_bits(scale),
        num_seqs,
    )
