"""Cross-entropy of the trained tokens, forward and backward through the frozen output head, a chunk at a time.

Logits of a whole micro-batch would be the largest tensor of all; only rows with a target have any, and few of them at
once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK_BYTES = 128 << 20
"""Of fp32 logits that are in memory at once."""


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
    num_rows = max(1, _CHUNK_BYTES // (4 * head_weight.shape[0]))
    for first in range(0, hidden.shape[0], num_rows):
        rows = slice(first, first + num_rows)
        chunk_targets = targets[rows, None]
        product = torch.mm(hidden[rows], head_weight.t())
        logits = product.float()
        lse = torch.logsumexp(logits, dim=-1, keepdim=True)
        sums.losses.add_((lse - logits.gather(1, chunk_targets)).sum(dtype=torch.float64))
        sums.hits.add_((logits.argmax(-1, keepdim=True) == chunk_targets).sum())
        if gradient is not None and gradient_scale is not None:
            logits.sub_(lse).exp_()
            logits.scatter_add_(1, chunk_targets, logits.new_full((1, 1), -1.0).expand_as(chunk_targets))
            torch.mm(product.copy_(logits.mul_(gradient_scale)), head_weight, out=gradient[rows])
    return sums, gradient
