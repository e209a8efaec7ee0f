"""What a rank with some of the vocabulary's logits contributes to a draw: its best token, by the same rule as on one
rank.

    largest_of_shard:  largest[n] = max(logits[n]), token[n] = first + the lowest t that has it
    best_of_shard:     score[n] = max over t of x[n, t] + g[n, first + t], token[n] = first + the lowest t that has it,
                       x = (logits - largest) / temperature with the largest of all ranks,
                       g the noise of kernels/gumbel_argmax.py

The noise is keyed by (seed, position, token). So the token with the best score over all ranks (the lowest rank's if
equal) is the one that kernels/sample_tokens.py would draw without filters from all logits. The token of the largest
logit is its answer at temperature 0.

Tensors (N rows, V tokens of this rank):
    logits       [N, V]  bf16 or fp32, last stride 1; read only
    largest      [N]     fp32. NaN or +inf if there is one among the logits: then nothing can be drawn
    temperature  [N]     fp32; the result of a row with 0 is meaningless
    seeds        [N]     int64
    positions    [N]     int64: index of the new token in its sequence
    token        [N]     int32, in the whole vocabulary
first: id of the first token, a multiple of 4. V > 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.group_max import group_max
from kernels.gumbel_argmax import best_score_reference, gumbel_argmax_triton


def largest_of_shard(logits: Tensor, first: int) -> tuple[Tensor, Tensor]:
    largest, token = logits.max(dim=-1)
    return largest.float(), (token + first).int()


def best_of_shard_reference(
    logits: Tensor, largest: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, first: int
) -> tuple[Tensor, Tensor]:
    divisor = torch.where(temperature > 0, temperature, 1.0)
    x = (logits.float() - largest[:, None]) / divisor[:, None]
    score, token = best_score_reference(x, seeds, positions, first)
    return score, (token + first).int()


def best_of_shard_triton(
    logits: Tensor, largest: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, first: int
) -> tuple[Tensor, Tensor]:
    """On CUDA tensors, or on any in Triton's interpreter. All except logits are contiguous."""
    everything = torch.full_like(largest, -math.inf)
    score, token = gumbel_argmax_triton(
        logits, group_max(logits), largest, everything, temperature, seeds, positions, first
    )
    best, chunk = score.max(dim=-1)
    return best, token.gather(1, chunk[:, None])[:, 0] + first


def best_of_shard(
    logits: Tensor, largest: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, first: int
) -> tuple[Tensor, Tensor]:
    assert first % 4 == 0
    compute = best_of_shard_triton if logits.is_cuda else best_of_shard_reference
    return compute(logits, largest, temperature, seeds, positions, first)
