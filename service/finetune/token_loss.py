"""Cross-entropy of the trained tokens, forward and backward through the frozen output head, a chunk at a time.

Logits of a whole micro-batch would be the largest tensor of all; only rows with a target have any, and few of them at
once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.cross_entropy import cross_entropy

_CHUNK_BYTES = 128 << 20
"""Of logits that are in memory at once; on a CPU, where there is a copy in fp32, of this one."""


class LossSums(NamedTuple):
    """Over tokens, fp64 numbers on the device. losses: of the cross-entropies. hits: tokens of which the greedy choice
    is the target."""

    losses: Tensor
    hits: Tensor

    def add(self, others: LossSums) -> LossSums:
        return LossSums(self.losses + others.losses, self.hits + others.hits)


def token_loss(
    hidden: Tensor, targets: Tensor, head_weight: Tensor, gradient_scale: float | None
) -> tuple[LossSums, Tensor | None]:
    """hidden [N, hidden_size], targets [N] int64, head_weight [vocab_size, hidden_size]. Returns the sums, and the
    gradient of gradient_scale * (the losses' sum) for `hidden`, like it; None if gradient_scale is None."""
    sums = LossSums(*hidden.new_zeros(2, dtype=torch.float64))
    gradient = None if gradient_scale is None else torch.empty_like(hidden)
    num_bytes = hidden.element_size() if hidden.is_cuda else 4
    num_rows = max(1, _CHUNK_BYTES // (num_bytes * head_weight.shape[0]))
    for first in range(0, hidden.shape[0], num_rows):
        rows = slice(first, first + num_rows)
        logits = torch.mm(hidden[rows], head_weight.t())
        losses, hits = cross_entropy(logits, targets[rows], gradient_scale)
        sums.losses.add_(losses.sum(dtype=torch.float64))
        sums.hits.add_(hits.sum())
        if gradient is not None:
            torch.mm(logits, head_weight, out=gradient[rows])
    return sums, gradient
