"""Logits to ids. The order of transforms: temperature, top-k, top-p, draw (kernels/sample_tokens.py has each rule)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.greedy_tokens import greedy_tokens
from kernels.sample_tokens import sample_tokens


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The parameters of N draws.

    temperature, top_p [N] fp32, top_k [N] int32: as in SamplingParams (0, 1 and 0 switch them off).
    seeds, positions [N] int64: key the draw; position is the new token's index in its sequence.
    is_greedy: every temperature is 0, known on the host, so that nothing else need be looked at.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seeds: Tensor
    positions: Tensor
    is_greedy: bool


def sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """logits [N, vocab_size] -> ids [N] int64; -1 where a row's logits are not finite.

    A draw depends on its row, its parameters, its seed and its position, never on its neighbours.
    """
    if batch.is_greedy:
        return greedy_tokens(logits)
    return sample_tokens(logits, batch.temperature, batch.top_k, batch.top_p, batch.seeds, batch.positions)
