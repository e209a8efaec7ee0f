"""kernels/lora_shrink.py as a compiled loop: reads each token's own rows of A in place, without copies or grouping."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from torch import Tensor

from kernels.loops.bf16 import bf16_at, count_up, float32_at, int32_at, int64_at, widen
from kernels.loops.team import Loop
from kernels.lora_tensors import LoraTables, TokenSlots, check_lora_tensors

_FEW_TOKENS = 4


@Loop
@no_type_check
def _lora_shrink(arguments):
    """Item: one token."""
    a = int64_at(arguments, 19)
    num_tokens, x_stride, size, pool, num_parts, max_rank = a[1], a[3], a[4], a[6], a[17], a[18]
    slots, token_size = int32_at(a[5], num_tokens), num_parts * max_rank
    token = count_up(arguments)
    while token < num_tokens:
        x = bf16_at(a[2] + 2 * token * x_stride, size)
        out = float32_at(a[16] + 4 * token * token_size, token_size)
        for i in range(token_size):
            out[i] = np.float32(0)
        slot = np.int64(slots[token])
        if slot > 0:
            for part in range(num_parts):
                rank = int32_at(a[10] + 4 * (slot * a[11] + part * a[12]), 1)[0]
                scale = float32_at(a[13] + 4 * (slot * a[14] + part * a[15]), 1)[0]
                offsets = int64_at(a[7] + 8 * (slot * a[8] + part * a[9]), rank)
                for r in range(rank):
                    row = bf16_at(pool + 2 * offsets[r], size)
                    total = np.float32(0)
                    for i in range(size):
                        total += widen(row[i]) * widen(x[i])
                    out[part * max_rank + r] = total * scale
        token = count_up(arguments)


def lora_shrink(x: Tensor, token_slots: TokenSlots, tables: LoraTables) -> Tensor:
    """x bf16; the result is fp32."""
    check_lora_tensors(x, token_slots, tables)
    num_tokens, size = x.shape
    out = torch.empty((num_tokens, tables.num_parts, tables.max_rank), dtype=torch.float32)
    _lora_shrink(
        num_tokens > _FEW_TOKENS,
        num_tokens,
        x.data_ptr(),
        x.stride(0),
        size,
        token_slots.slots.data_ptr(),
        tables.pool.data_ptr(),
        tables.a_offsets.data_ptr(),
        *tables.a_offsets.stride()[:2],
        tables.ranks.data_ptr(),
        *tables.ranks.stride(),
        tables.scales.data_ptr(),
        *tables.scales.stride(),
        out.data_ptr(),
        tables.num_parts,
        tables.max_rank,
    )
    return out
