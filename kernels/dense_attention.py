"""Dense attention with soft cap and sinks, which torch's scaled_dot_product_attention does not have, in plain torch: a
part of the references.

    out[n] = sum over c of exp(s[n, c]) value[c] / (sum over c of exp(s[n, c]) + exp(sink))
    s = mask(softcap(scale * query key^T))        softcap(x) = cap * tanh(x / cap) (Gemma 2, section 2)

Tensors (any leading dims that broadcast; N queries, C cells, D head dim):
    query        [..., N, D]
    keys, values [..., C, D]
    mask         bool, broadcasts to [..., N, C]: True where a cell counts; every query has such a cell
    cap          None: scores are not capped
    sinks        broadcasts to [..., N]: an extra score that takes its share and has no value (gpt-oss; Xiao et al.
                 2023); None: there is none
    returns      [..., N, D] in query's dtype

Scores and softmax in fp32, rounded once. Differentiable.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dense_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scale: float,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    scores = scale * query.float() @ keys.float().transpose(-1, -2)
    if cap is not None:
        scores = cap * (scores / cap).tanh()
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is None:
        return (scores.softmax(-1) @ values.float()).to(query.dtype)
    of_rows = sinks.float().expand(scores.shape[:-1])
    weights = torch.cat((scores, of_rows[..., None]), dim=-1).softmax(-1)[..., :-1]
    return (weights @ values.float()).to(query.dtype)
