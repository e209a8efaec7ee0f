"""Logits to ids. The order of transforms: temperature, top-k, top-p, draw (kernels/sample_tokens.py has each rule)."""

from __future__ import annotations

from torch import Tensor

from kernels.greedy_tokens import greedy_tokens
from kernels.sample_tokens import sample_tokens
from service.sampling.sampling_batch import SamplingBatch


def sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """logits [N, vocab_size] -> ids [N] int64; -1 where a row's logits are not finite.

    A draw depends on its row, its parameters, its seed and its position, never on its neighbours.
    """
    if batch.is_greedy:
        return greedy_tokens(logits)
    return sample_tokens(logits, batch.temperature, batch.top_k, batch.top_p, batch.seeds, batch.positions)
