"""Log probabilities: how many are computed, and those of given tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.token_logprobs import TokenLogprobs, token_logprobs

_NUM_TOP = (0, 8, 20, 64, 128)
"""Numbers of top tokens for which the kernel is compiled. The next larger one serves a request."""

_SCORED_AT_ONCE = 128
"""Rows of logits in memory at once while a prompt is scored: 128 x 128k in fp32 are 64 MiB."""


def num_top_for(asked: int, vocab_size: int) -> int:
    """How many top tokens to compute if at most `asked` are wanted."""
    assert asked <= _NUM_TOP[-1]
    return min(next(num for num in _NUM_TOP if num >= asked), vocab_size)


@dataclass(frozen=True, slots=True)
class Scores:
    """Log probabilities of M given tokens. logprobs: of M rows. ranks [M] int64: 1 is the most probable."""

    logprobs: TokenLogprobs
    ranks: Tensor


def asked_logprobs(logits: Tensor, rows: Tensor, token_ids: Tensor) -> Tensor:
    """logits [N, vocab_size]; rows [M] int64: rows of logits; token_ids [M, K] int64: tokens asked for in each of them.
    Returns their log probabilities, [M, K] fp32."""
    pieces = zip(torch.split(rows, _SCORED_AT_ONCE), torch.split(token_ids, _SCORED_AT_ONCE), strict=True)
    return torch.cat([logits.index_select(0, some).float().log_softmax(-1).gather(-1, ids) for some, ids in pieces])


def score(
    hidden: Tensor,
    targets: Tensor,
    compute_logits: Callable[[Tensor], Tensor],
    num_top: int,
    one_by_one: bool = False,
) -> Scores:
    """hidden [M, hidden_size], targets [M] int64: how probable each target is as the next token of its row. M >= 1.
    one_by_one: compute the logits of each row on its own (for deterministic results).

    Only _SCORED_AT_ONCE rows of logits are in memory at a time.
    """
    pieces = []
    at_once = 1 if one_by_one else _SCORED_AT_ONCE
    for rows, ids in zip(*(torch.split(each, at_once) for each in (hidden, targets)), strict=True):
        logits = compute_logits(rows)
        chosen = logits.gather(-1, ids[:, None])
        pieces.append((*token_logprobs(logits, ids, num_top), (logits > chosen).sum(-1) + 1))
    chosen, top_ids, top, ranks = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return Scores(TokenLogprobs(chosen, top_ids, top), ranks)
