"""Dense attention with a soft cap on its scores (Gemma 2, section 2), in plain torch: a part of the references.

    out = softmax(mask(cap * tanh(scale * query key^T / cap))) value

Tensors (any leading dims that broadcast; N queries, C cells, D head dim):
    query        [..., N, D]
    keys, values [..., C, D]
    mask         bool, broadcasts to [..., N, C]: True where a cell counts; every query has such a cell
    returns      [..., N, D] in query's dtype

Scores and softmax in fp32, rounded once. Differentiable. torch's scaled_dot_product_attention has no such cap.
"""

from __future__ import annotations

from torch import Tensor


def capped_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, cap: float) -> Tensor:
    scores = scale * query.float() @ keys.float().transpose(-1, -2)
    scores = (cap * (scores / cap).tanh()).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ values.float()).to(query.dtype)
