"""Causal self-attention of packed sequences, without a cache, and its gradient, for training.

    out[t] = sum over s of p[t, s] * value[s]     p[t] = softmax(scale * query[t] . key[s])
    lse[t] = log sum over s of exp(scale * query[t] . key[s])

where s runs over the tokens of t's own sequence up to t; with a window, over the last `window` of them. H / K query
heads share a key head. Given the gradient of `out`, the backward pass returns those of query, key and value; from the
forward pass it needs `out` and `lse` (FlashAttention, Dao et al. 2022).

Tensors (T tokens, H query heads, K kv heads, D head dim):
    query       [T, H, D]  bf16 or fp32; last stride 1, rows and heads may be strided (views of a packed projection)
    key, value  [T, K, D]  likewise
    out         [T, H, D]  like query, contiguous, new
    lse         [H, T]     fp32, new

On a GPU in 16 bits: torch's FlashAttention, deterministic. Elsewhere the reference, in fp32, rounded once when written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ROWS = 256
"""How many queries' scores the reference holds in memory at once."""
_MOST_FLASH_HEAD_DIM = 256


class PackedSequences(NamedTuple):
    """Consecutive sequences that fill all T tokens. starts: [S + 1] int32 on the tokens' device: where each begins,
    then T. longest: an upper bound on a sequence's length."""

    lengths: tuple[int, ...]
    starts: Tensor
    longest: int


class AttentionGradients(NamedTuple):
    """The gradients of query [T, H, D], key and value [T, K, D]."""

    query: Tensor
    key: Tensor
    value: Tensor


def packed_attention_reference(
    query: Tensor, key: Tensor, value: Tensor, sequences: PackedSequences, scale: float, window: int | None = None
) -> tuple[Tensor, Tensor]:
    num_tokens, num_heads, head_dim = query.shape
    out = query.new_empty(query.shape)
    lse = query.new_empty(num_heads, num_tokens, dtype=torch.float32)
    for part in _parts(sequences, window):
        rows, context = slice(part.first, part.end), slice(part.start, part.end)
        scores = _scores(query[rows], key[context], part, scale)
        part_lse = torch.logsumexp(scores, dim=-1, keepdim=True)
        attended = torch.bmm(scores.sub_(part_lse).exp_(), _by_head(value[context]))
        out[rows] = attended.view(-1, part.num_rows, num_heads // key.shape[1], head_dim).transpose(0, 1).flatten(1, 2)
        lse[:, rows] = part_lse.view(key.shape[1], part.num_rows, -1).transpose(1, 2).flatten(0, 1)
    return out, lse


def packed_attention_backward_reference(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    sequences: PackedSequences,
    scale: float,
    window: int | None = None,
) -> AttentionGradients:
    num_kv_heads, head_dim = key.shape[1:]
    groups = query.shape[1] // num_kv_heads
    query_grad = query.new_empty(query.shape)
    key_grad = key.new_zeros(num_kv_heads, key.shape[0], head_dim, dtype=torch.float32)
    value_grad = torch.zeros_like(key_grad)
    # Softmax's gradient subtracts from every row the sum over s of p[s] * dp[s], which equals grad . out.
    row_sums = (grad.float() * out).sum(-1)
    for part in _parts(sequences, window):
        rows, context = slice(part.first, part.end), slice(part.start, part.end)
        part_query, part_grad = _grouped(query[rows], num_kv_heads), _grouped(grad[rows], num_kv_heads)
        part_key, part_value = _by_head(key[context]), _by_head(value[context])
        part_lse = lse[:, rows].view(num_kv_heads, groups, -1).transpose(1, 2).reshape(num_kv_heads, -1, 1)
        part_sums = row_sums[rows].view(-1, num_kv_heads, groups).transpose(0, 1).reshape(num_kv_heads, -1, 1)
        weights = _scores(query[rows], key[context], part, scale).sub_(part_lse).exp_()
        value_grad[:, context].baddbmm_(weights.transpose(1, 2), part_grad)
        score_grad = torch.bmm(part_grad, part_value.transpose(1, 2)).sub_(part_sums).mul_(weights).mul_(scale)
        key_grad[:, context].baddbmm_(score_grad.transpose(1, 2), part_query)
        part_query_grad = torch.bmm(score_grad, part_key).view(num_kv_heads, part.num_rows, groups, head_dim)
        query_grad[rows] = part_query_grad.transpose(0, 1).flatten(1, 2)
    return AttentionGradients(
        query_grad, key_grad.transpose(0, 1).to(key.dtype), value_grad.transpose(0, 1).to(value.dtype)
    )


class _Part(NamedTuple):
    """Queries first <= t < end, which see tokens from `start` on. hidden [num_rows, end - start]: True where a query
    must not see a token."""

    start: int
    first: int
    end: int
    hidden: Tensor

    @property
    def num_rows(self) -> int:
        return self.end - self.first


def _parts(sequences: PackedSequences, window: int | None) -> Iterator[_Part]:
    sequence_start = 0
    for length in sequences.lengths:
        sequence_end = sequence_start + length
        for first in range(sequence_start, sequence_end, _ROWS):
            end = min(first + _ROWS, sequence_end)
            start = sequence_start if window is None else max(sequence_start, first - window + 1)
            everything = torch.ones(end - first, end - start, dtype=torch.bool, device=sequences.starts.device)
            hidden = everything.triu(first - start + 1)
            if window is not None:
                hidden |= everything.tril(first - start - window)
            yield _Part(start, first, end, hidden)
        sequence_start = sequence_end


def _scores(query: Tensor, key: Tensor, part: _Part, scale: float) -> Tensor:
    """[K, rows * H / K, context] fp32, minus infinity where hidden. Row by row, with the query heads of one key head
    adjacent."""
    num_kv_heads = key.shape[1]
    scores = torch.bmm(_grouped(query, num_kv_heads), _by_head(key).transpose(1, 2)).mul_(scale)
    scores.view(num_kv_heads, part.num_rows, -1, key.shape[0]).masked_fill_(part.hidden[:, None], float("-inf"))
    return scores


def _grouped(x: Tensor, num_kv_heads: int) -> Tensor:
    """[rows, H, D] -> [K, rows * H / K, D] fp32."""
    num_rows, _, head_dim = x.shape
    grouped = x.view(num_rows, num_kv_heads, -1, head_dim).transpose(0, 1)
    return grouped.reshape(num_kv_heads, -1, head_dim).float()


def _by_head(x: Tensor) -> Tensor:
    """[rows, K, D] -> [K, rows, D] fp32."""
    return x.transpose(0, 1).float()


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, sequences: PackedSequences, scale: float, window: int | None = None
) -> tuple[Tensor, Tensor]:
    if not has_flash(query, query.shape[-1]):
        return packed_attention_reference(query, key, value, sequences, scale, window)
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        sequences.starts,
        sequences.starts,
        sequences.longest,
        sequences.longest,
        0.0,
        True,
        False,
        scale=scale,
        **_flash_window(window),
    )
    return out, lse


def packed_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    sequences: PackedSequences,
    scale: float,
    window: int | None = None,
) -> AttentionGradients:
    if not has_flash(query, query.shape[-1]):
        return packed_attention_backward_reference(grad, query, key, value, out, lse, sequences, scale, window)
    no_dropout = torch.empty(2, dtype=torch.uint64, device=query.device)  # a generator's state, which is not read
    with _deterministic():
        gradients = torch.ops.aten._flash_attention_backward(
            grad,
            query,
            key,
            value,
            out,
            lse,
            sequences.starts,
            sequences.starts,
            sequences.longest,
            sequences.longest,
            0.0,
            True,
            no_dropout,
            no_dropout,
            scale=scale,
            **_flash_window(window),
        )
    return AttentionGradients(*gradients)


def has_flash(like: Tensor, head_dim: int) -> bool:
    """Whether FlashAttention takes tensors of this dtype and device. Its launches depend only on the number of tokens
    and sequences and on `longest`. The reference uses `lengths`."""
    is_flash_shape = head_dim % 8 == 0 and head_dim <= _MOST_FLASH_HEAD_DIM
    return like.is_cuda and like.dtype in (torch.bfloat16, torch.float16) and is_flash_shape


def _flash_window(window: int | None) -> dict[str, int]:
    return {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}


@contextmanager
def _deterministic() -> Iterator[None]:
    """Otherwise FlashAttention sums a query's gradient in the order in which blocks arrive. Torch's deterministic mode
    would also fill each new tensor with NaN, one more launch, so that is turned off."""
    module: Any = torch.utils.deterministic
    mode, fills = torch.get_deterministic_debug_mode(), module.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error")
    module.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        module.fill_uninitialized_memory = fills
