"""Cross-entropy of the trained tokens, forward and backward through the frozen output head, in chunks.

The logits of a whole micro-batch would be the largest tensor of all. Only rows with a target get logits, and only a
chunk of them at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.cross_entropy import cross_entropy
from service.layers.tensor_parallel import ALONE, TensorParallel

_CHUNK_BYTES = 128 << 20
"""Size of a chunk's logits. On a CPU there is also an fp32 copy, and the limit is for that one."""


class LossSums(NamedTuple):
    """Sums over tokens, fp64 scalars on the device. losses: cross-entropies. hits: greedy choices that are right."""

    losses: Tensor
    hits: Tensor

    def add(self, others: LossSums) -> LossSums:
        return LossSums(self.losses + others.losses, self.hits + others.hits)


class VocabWeight(NamedTuple):
    """rows [len(ids) + padding, hidden_size]: this rank's rows of the output head; without tensor parallelism `ids` is
    the whole vocabulary."""

    rows: Tensor
    ids: range
    vocab_size: int


def token_loss(
    hidden: Tensor,
    targets: Tensor,
    head: VocabWeight,
    gradient_scale: float | None,
    parallel: TensorParallel = ALONE,
) -> tuple[LossSums, Tensor | None]:
    """hidden [N, hidden_size], targets [N] int64. Returns the sums, and the gradient of gradient_scale * (sum of
    losses) with respect to `hidden`, in its shape; None if gradient_scale is None. parallel: the ranks that share the
    head; each gathers all logits, and the gradient is all-reduced over them."""
    sums = LossSums(*hidden.new_zeros(2, dtype=torch.float64))
    gradient = None if gradient_scale is None else torch.empty_like(hidden)
    num_bytes = hidden.element_size() if hidden.is_cuda else 4
    num_rows = max(1, _CHUNK_BYTES // (num_bytes * head.vocab_size))
    for first in range(0, hidden.shape[0], num_rows):
        rows = slice(first, first + num_rows)
        logits = torch.mm(hidden[rows], head.rows.t())
        if parallel.size > 1:
            logits = parallel.all_gather(logits).movedim(0, 1).flatten(1)[:, : head.vocab_size].contiguous()
        losses, hits = cross_entropy(logits, targets[rows], gradient_scale)
        sums.losses.add_(losses.sum(dtype=torch.float64))
        sums.hits.add_(hits.sum())
        if gradient is not None:
            own = logits[:, head.ids.start : head.ids.stop]
            gradient[rows] = parallel.all_reduce(torch.mm(own, head.rows[: len(head.ids)]))
    return sums, gradient
