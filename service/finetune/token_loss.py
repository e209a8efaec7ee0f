"""Cross-entropy of the trained tokens, forward and backward through the frozen output head, a chunk at a time.

Logits of a whole micro-batch would be the largest tensor of all; only rows with a target have any, and few of them at
once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.cross_entropy import cross_entropy
from service.layers.tensor_parallel import ALONE, TensorParallel

_CHUNK_BYTES = 128 << 20
"""Of logits that are in memory at once; on a CPU, where there is a copy in fp32, of this one."""


class LossSums(NamedTuple):
    """Over tokens, fp64 numbers on the device. losses: of the cross-entropies. hits: tokens of which the greedy choice
    is the target."""

    losses: Tensor
    hits: Tensor

    def add(self, others: LossSums) -> LossSums:
        return LossSums(self.losses + others.losses, self.hits + others.hits)


class VocabWeight(NamedTuple):
    """The output head's rows [len(ids), hidden_size], and padding behind them; of one rank alone all of vocab_size."""

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
    """hidden [N, hidden_size], targets [N] int64. Returns the sums, and the gradient of gradient_scale * (the losses'
    sum) for `hidden`, like it; None if gradient_scale is None. parallel: the ranks that have the head's ids; all of
    them get the logits of all, and of a gradient, which is a sum over ids, the whole."""
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
