"""kernels/greedy_tokens.py as a compiled loop. With the bits below the sign inverted for negative numbers, a bf16
number's bits are an integer with the same order as the numbers, and integer maxima vectorise."""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from torch import Tensor

from kernels.loops.bf16 import bf16_at, count_up, int64_at, widen
from kernels.loops.team import Loop

_FEW_NUMBERS = 400_000  # some 20 microseconds on one core
_INFINITY = 0x7F80


@Loop
@no_type_check
def _greedy_tokens(arguments):
    """Item: one row."""
    a = int64_at(arguments, 6)
    num_rows, size = a[1], a[5]
    tokens = int64_at(a[4], num_rows)
    row = count_up(arguments)
    while row < num_rows:
        logits = bf16_at(a[2] + 2 * row * a[3], size)
        largest, farthest = np.int16(-0x8000), np.int16(0)
        for i in range(size):
            bits = np.int16(logits[i])
            magnitude = np.int16(bits & np.int16(0x7FFF))
            key = np.int16(bits ^ np.int16((bits >> np.int16(15)) & np.int16(0x7FFF)))
            largest = max(largest, key)
            farthest = max(farthest, magnitude)
        token = np.int64(-1)
        if farthest <= _INFINITY and -_INFINITY - 1 < largest < _INFINITY:
            highest = widen(np.uint16(largest ^ np.int16((largest >> np.int16(15)) & np.int16(0x7FFF))))
            token = 0
            while widen(logits[token]) != highest:
                token += 1
        tokens[row] = token
        row = count_up(arguments)


def greedy_tokens(logits: Tensor) -> Tensor:
    """bf16, last stride 1."""
    num_rows, size = logits.shape
    assert logits.dtype is torch.bfloat16 and logits.stride(1) == 1 and size > 0
    tokens = torch.empty(num_rows, dtype=torch.int64)
    _greedy_tokens(
        logits.numel() > _FEW_NUMBERS, num_rows, logits.data_ptr(), logits.stride(0), tokens.data_ptr(), size
    )
    return tokens
