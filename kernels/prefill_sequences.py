"""Prefill attention on a CPU: one sequence after another, with all its scores at once where that is faster.

A part of the reference in kernels/paged_attention_prefill.py; tensors and letters as there (N query rows of a sequence,
C tokens of its context).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernels.fp8_cache import Cache, elements_of, read_blocks

_FEWEST_SCORES = 4096
_MOST_SCORES = 1 << 24  # bounds their memory: 32 MB, and the same for the probabilities


@dataclass(frozen=True)
class PrefillSequence:
    """One sequence as the reference sees it: its query rows, its blocks, and the causal mask [N, C]. mask None: there
    is no cached prefix, rows and context are the same tokens."""

    rows: slice
    context_len: int
    block_ids: Tensor
    mask: Tensor | None

    @cached_property
    def hidden(self) -> Tensor:
        """[N, C] bf16: -inf where the query does not see the cell, else 0."""
        visible = visible_cells(self.rows.stop - self.rows.start, self.context_len, None, self.block_ids.device)
        return torch.zeros(visible.shape, dtype=torch.bfloat16, device=visible.device).masked_fill_(~visible, -math.inf)


def prefill_sequence(block_ids: Tensor, rows: slice, context_len: int, block_size: int) -> PrefillSequence:
    """rows: in the flat batch. block_ids [M] int32: the sequence's row of the block table."""
    num_queries = rows.stop - rows.start
    has_prefix = num_queries < context_len
    mask = visible_cells(num_queries, context_len, None, block_ids.device) if has_prefix else None
    return PrefillSequence(rows, context_len, block_ids[: -(-context_len // block_size)], mask)


def pays_to_keep_scores(rows: Tensor, context_len: int) -> bool:
    """rows [1, H, N, D]. Whether `attend_by_scores` is faster than SDPA, and its scores fit in _MOST_SCORES."""
    num_pairs = rows.shape[2] * context_len
    return rows.dtype is torch.bfloat16 and num_pairs >= _FEWEST_SCORES and rows.shape[1] * num_pairs <= _MOST_SCORES


def attend_by_scores(rows: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, scale: float) -> Tensor:
    """rows [1, H, N, D], keys and values [1, K, C, D] -> [1, H, N, D]. Unlike SDPA, with all scores at once.

    Measured with AVX512-bf16, 9 heads of 64 dims in 3 groups; milliseconds, SDPA / this, queries x context. One core:
    128 x 128 0.65 / 0.41, 512 x 512 8.8 / 5.8. Two cores: 0.52 / 0.32, 5.5 / 2.9, and 128 x 640 2.3 / 1.1. Slower below
    64 x 64.
    """
    num_kv_heads, context_len = keys.shape[1:3]
    query, keys, values = rows.reshape(num_kv_heads, -1, rows.shape[-1]), keys[0].contiguous(), values[0].contiguous()
    scores = torch.baddbmm(query.new_empty(1), query, keys.mT, beta=0, alpha=scale)
    weights = scores.view(-1, *hidden.shape).add_(hidden).softmax(-1).view(num_kv_heads, -1, context_len)
    return torch.bmm(weights, values).view(rows.shape)


def visible_cells(num_queries: int, context_len: int, sliding_window: int | None, device: torch.device) -> Tensor:
    """[N, C] bool: True where the query sees the cell. The queries are the context's last tokens."""
    cell = torch.arange(context_len, device=device)
    position = cell[context_len - num_queries :, None]
    visible = cell <= position
    return visible if sliding_window is None else visible & (cell > position - sliding_window)


def gather_sequence(cache: Cache, sequence: PrefillSequence, dtype: torch.dtype, first: int = 0) -> Tensor:
    """cache [B, P, K, D] -> [1, K, C - first, D] of `dtype`: the sequence's cells from position `first` on, in token
    order."""
    block_size = elements_of(cache).shape[1]
    first_block = first // block_size
    cells = read_blocks(cache, sequence.block_ids[first_block:], dtype).flatten(0, 1)
    start = first_block * block_size
    return cells[first - start : sequence.context_len - start].transpose(0, 1)[None]
