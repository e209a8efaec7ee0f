"""Argmax over the vocabulary: the whole of sampling at temperature 0.

    out[n] = the lowest t with logits[n, t] = max(logits[n]);  -1 if that maximum is not finite

(a NaN or +inf in the row, or nothing but -inf). Same answer as sample_tokens with temperature 0.

Tensors (N rows, V vocabulary):
    logits   [N, V]  bf16 or fp32, last stride 1; read only
    returns  [N]     int64, new

N may be 0. V < 2^31.
"""

from __future__ import annotations

import torch
from torch import Tensor


def greedy_tokens_reference(logits: Tensor) -> Tensor:
    largest, ids = logits.max(dim=-1)
    return torch.where(largest.isfinite(), ids, -1)


def greedy_tokens(logits: Tensor) -> Tensor:
    assert logits.stride(-1) == 1 and logits.shape[-1] < 2**31
    return greedy_tokens_reference(logits)
