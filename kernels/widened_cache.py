"""FP8 keys and values, widened to the query's dtype once for all rows of a chunk that attend to them.

A tile of prefill attention over an FP8 cache converts it in registers, and so does every other tile that reads the same
cells: 32 times over for a chunk of 1,024 tokens of Llama-8B. If the cache is widened once, the rest takes as long as
over a plain cache (figures: kernels/attention_config.py).

The output holds the sequences' blocks one after another, of as many sequences as fit into `capacity` blocks. Sequence s
has W = (context_lens[s] + P - 1) // P blocks, from firsts[s] on:

    keys[firsts[s] + j, p, h] = 2^(key_exponents[B, p, h] - 127) * key_elements[B, p, h]   B = block_table[rows[s], j]

for j < W, and values likewise. Tensors (S sequences, P block size, K kv heads, D head dim):
    keys, values   Fp8Cache, as in kernels/fp8_cache.py
    block_table, rows, context_lens   as in kernels/paged_attention_prefill.py
    returns        keys, values [capacity, P, K, D] of `dtype`, contiguous, new

Exact in bf16 and fp32. Cells past a context, and blocks past the last sequence's, hold anything. The host reads no
values of the tensors: a CUDA graph may hold the launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import torch
from torch import Tensor

from kernels.attention_config import num_multiprocessors
from kernels.fp8_cache import Fp8Cache, from_fp8, scale_of
from kernels.optional_triton import tl, triton

MOST_BYTES = 128 << 20
"""Bytes of keys and values. The MLP of 4,096 tokens of Llama-8B takes twice as much, after attention's memory is free
again."""

_PROGRAMS_PER_SM = 8
_TILE_ROWS = 64


@dataclass(frozen=True)
class WidenedTable:
    """Where the sequences' blocks are, made once per step.

    may_have_others: whether there may be sequences without room. firsts [S] int32: the first block of each. block_table
    [S, M] int32: for the sequences with room. fitting, others [S] int64: the row of a sequence in that table, or in the
    cache's own table; -1 for the sequences of the other kind.
    """

    capacity: int
    may_have_others: bool
    block_size: int
    firsts: Tensor
    block_table: Tensor
    fitting: Tensor
    others: Tensor


def capacity_of(num_seqs: int, num_entries: int, cell_bytes: int, block_size: int) -> int:
    """In blocks. cell_bytes: of a token's widened keys and values."""
    return min(num_seqs * num_entries, MOST_BYTES // (cell_bytes * block_size))


def widened_table(rows: Tensor, context_lens: Tensor, num_entries: int, block_size: int, capacity: int) -> WidenedTable:
    lens = (context_lens + (block_size - 1)) // block_size
    ends = lens.cumsum(0, dtype=torch.int32)
    firsts = ends - lens
    fits = ends <= capacity
    entries = torch.arange(num_entries, dtype=torch.int32, device=rows.device)
    places = torch.arange(len(lens), device=rows.device)
    none = torch.full_like(rows, -1)
    return WidenedTable(
        capacity,
        capacity < len(lens) * num_entries,
        block_size,
        firsts,
        firsts[:, None] + entries,
        torch.where(fits, places, none),
        torch.where(fits, none, rows),
    )


def widened_cache_reference(
    keys: Fp8Cache,
    values: Fp8Cache,
    block_table: Tensor,
    rows: Tensor,
    context_lens: Tensor,
    table: WidenedTable,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    wide = [keys.elements.new_empty((table.capacity, *keys.elements.shape[1:]), dtype=dtype) for _ in range(2)]
    for seq, (first, context_len) in enumerate(zip(table.firsts.tolist(), context_lens.tolist(), strict=True)):
        count = -(-context_len // table.block_size)
        if int(table.fitting[seq]) >= 0:
            blocks = block_table[rows[seq], :count].long()
            for out, cache in zip(wide, (keys, values), strict=True):
                elements = cache.elements.view(torch.uint8)[blocks].view(cache.elements.dtype)
                out[first : first + count] = from_fp8(elements, cache.exponents[blocks], dtype)
    return wide[0], wide[1]


@triton.jit(
    do_not_specialize=["num_seqs", "table_stride", "capacity"],
    do_not_specialize_on_alignment=["block_table_ptr", "rows_ptr", "context_lens_ptr"],
)
@no_type_check
def _widened_cache_kernel(
    key_elements_ptr,
    value_elements_ptr,
    key_exponents_ptr,
    value_exponents_ptr,
    block_table_ptr,
    rows_ptr,
    context_lens_ptr,
    keys_ptr,
    values_ptr,
    num_seqs,
    block_stride,
    table_stride,
    capacity,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (i, 0 for keys and 1 for values): blocks i, i + number of programs, ..."""
    elements_ptr, exponents_ptr, out_ptr = key_elements_ptr, key_exponents_ptr, keys_ptr
    if tl.program_id(1) == 1:
        elements_ptr, exponents_ptr, out_ptr = value_elements_ptr, value_exponents_ptr, values_ptr
    CELLS: tl.constexpr = BLOCK_SIZE * NUM_KV_HEADS
    cell = tl.arange(0, TILE_ROWS)
    dim = tl.arange(0, BLOCK_D)
    total = 0
    end = 0
    for base in range(0, num_seqs, 128):
        seqs = base + tl.arange(0, 128)
        lens = tl.cdiv(tl.load(context_lens_ptr + seqs, mask=seqs < num_seqs, other=0), BLOCK_SIZE)
        ends = end + tl.cumsum(lens, 0)
        total = tl.maximum(total, tl.max(tl.where(ends <= capacity, ends, 0)))
        end += tl.sum(lens)
    for place in range(tl.program_id(0), total, tl.num_programs(0)):
        seq = 0
        first = 0
        end = 0
        for base in range(0, num_seqs, 128):
            seqs = base + tl.arange(0, 128)
            lens = tl.cdiv(tl.load(context_lens_ptr + seqs, mask=seqs < num_seqs, other=0), BLOCK_SIZE)
            ends = end + tl.cumsum(lens, 0)
            is_before = ends <= place
            seq += tl.sum((is_before & (seqs < num_seqs)).to(tl.int32))
            first = tl.maximum(first, tl.max(tl.where(is_before, ends, 0)))
            end += tl.sum(lens)
        row = tl.load(rows_ptr + seq)
        block = tl.load(block_table_ptr + row * table_stride + place - first).to(tl.int64)
        num_cells = (tl.load(context_lens_ptr + seq) - (place - first) * BLOCK_SIZE) * NUM_KV_HEADS
        for tile in range(0, CELLS, TILE_ROWS):
            is_cell = tile + cell < tl.minimum(num_cells, CELLS)
            offset = (tile + cell)[:, None] * HEAD_DIM + dim[None, :]
            is_element = is_cell[:, None] & (dim < HEAD_DIM)[None, :]
            elements = tl.load(elements_ptr + block * block_stride + offset, mask=is_element, other=0.0)
            exponent = tl.load(exponents_ptr + block * block_stride + tile + cell, mask=is_cell, other=0)
            numbers = elements.to(tl.float32) * scale_of(exponent)[:, None]
            out_offset = tl.cast(place, tl.int64) * (CELLS * HEAD_DIM) + offset
            tl.store(out_ptr + out_offset, numbers.to(out_ptr.dtype.element_ty), mask=is_element)


def widened_cache_triton(
    keys: Fp8Cache,
    values: Fp8Cache,
    block_table: Tensor,
    rows: Tensor,
    context_lens: Tensor,
    table: WidenedTable,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """On CUDA tensors, or on any in Triton's interpreter."""
    _, block_size, num_kv_heads, head_dim = keys.elements.shape
    assert block_size == table.block_size and keys.elements.stride(0) == values.elements.stride(0)
    assert block_table.stride(-1) == 1 and rows.dtype == torch.int64 and context_lens.dtype == torch.int32
    shape = (table.capacity, block_size, num_kv_heads, head_dim)
    wide_keys, wide_values = (torch.empty(shape, dtype=dtype, device=rows.device) for _ in range(2))
    if table.capacity == 0:
        return wide_keys, wide_values
    num_programs = min(table.capacity, _PROGRAMS_PER_SM // 2 * num_multiprocessors(rows.device))
    block_d = max(16, triton.next_power_of_2(head_dim))
    _widened_cache_kernel[(num_programs, 2)](
        keys.elements,
        values.elements,
        keys.exponents,
        values.exponents,
        block_table,
        rows,
        context_lens,
        wide_keys,
        wide_values,
        len(rows),
        keys.elements.stride(0),
        block_table.stride(0),
        table.capacity,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        TILE_ROWS=_TILE_ROWS,
        BLOCK_D=block_d,
        num_warps=4,
    )
    return wide_keys, wide_values


def widened_cache(
    keys: Fp8Cache,
    values: Fp8Cache,
    block_table: Tensor,
    rows: Tensor,
    context_lens: Tensor,
    table: WidenedTable,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    launch = widened_cache_triton if rows.is_cuda else widened_cache_reference
    return launch(keys, values, block_table, rows, context_lens, table, dtype)
