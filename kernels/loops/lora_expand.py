"""kernels/lora_expand.py as a compiled loop. The shrunk values are not rounded on the way."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from torch import Tensor

from kernels.loops.bf16 import bf16_at, count_up, float32_at, int32_at, int64_at, narrow, widen
from kernels.loops.team import Loop
from kernels.lora_tensors import MAX_PARTS, LoraTables, TokenSlots, check_lora_tensors

_FEW_TOKENS = 4


@Loop
@no_type_check
def _lora_expand(arguments):
    """Item: one token. The sums of a part's features are collected in the token's row of `sums`."""
    a = int64_at(arguments, 20)
    num_tokens, pool, y_stride, sums_stride, num_parts, max_rank = a[1], a[4], a[11], a[13], a[14], a[15]
    slots = int32_at(a[3], num_tokens)
    token = count_up(arguments)
    while token < num_tokens:
        slot = np.int64(slots[token])
        first = 0
        if slot > 0:
            for part in range(num_parts):
                size = a[16 + part]
                rank = int32_at(a[8] + 4 * (slot * a[9] + part * a[10]), 1)[0]
                offsets = int64_at(a[5] + 8 * (slot * a[6] + part * a[7]), rank)
                shrunk = float32_at(a[2] + 4 * (token * num_parts + part) * max_rank, rank)
                sums = float32_at(a[12] + 4 * token * sums_stride, size)
                y = bf16_at(a[19] + 2 * (token * y_stride + first), size)
                if rank > 0:
                    for n in range(size):
                        sums[n] = np.float32(0)
                    fours = rank // 4 * 4
                    for r in range(0, fours, 4):
                        row_0, row_1 = bf16_at(pool + 2 * offsets[r], size), bf16_at(pool + 2 * offsets[r + 1], size)
                        row_2, row_3 = (
                            bf16_at(pool + 2 * offsets[r + 2], size),
                            bf16_at(pool + 2 * offsets[r + 3], size),
                        )
                        s_0, s_1, s_2, s_3 = shrunk[r], shrunk[r + 1], shrunk[r + 2], shrunk[r + 3]
                        for n in range(size):
                            near = s_0 * widen(row_0[n]) + s_1 * widen(row_1[n])
                            sums[n] += near + (s_2 * widen(row_2[n]) + s_3 * widen(row_3[n]))
                    for r in range(fours, rank):
                        row, s = bf16_at(pool + 2 * offsets[r], size), shrunk[r]
                        for n in range(size):
                            sums[n] += s * widen(row[n])
                    for n in range(size):
                        y[n] = narrow(widen(y[n]) + sums[n])
                first += size
        token = count_up(arguments)


def lora_expand(shrunk: Tensor, token_slots: TokenSlots, tables: LoraTables, y: Tensor) -> None:
    """y bf16. shrunk should be fp32, as the loop of lora_shrink makes it."""
    check_lora_tensors(y, token_slots, tables)
    if shrunk.dtype is not torch.float32:
        shrunk = shrunk.float()
    num_tokens, num_parts = y.shape[0], tables.num_parts
    assert shrunk.is_contiguous()
    assert shrunk.shape == (num_tokens, num_parts, tables.max_rank) and y.shape[1] == sum(tables.out_features)
    sums = torch.empty((num_tokens, max(tables.out_features)), dtype=torch.float32)
    _lora_expand(
        num_tokens > _FEW_TOKENS,
        num_tokens,
        shrunk.data_ptr(),
        token_slots.slots.data_ptr(),
        tables.pool.data_ptr(),
        tables.b_offsets.data_ptr(),
        *tables.b_offsets.stride()[:2],
        tables.ranks.data_ptr(),
        *tables.ranks.stride(),
        y.stride(0),
        sums.data_ptr(),
        sums.stride(0),
        num_parts,
        tables.max_rank,
        *tables.out_features,
        *[0] * (MAX_PARTS - num_parts),
        y.data_ptr(),
    )
