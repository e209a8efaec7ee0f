"""Draws where every rank has the logits of some ids (tensor parallelism): each rank finds the same ids as one alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.best_of_shard import best_of_shard, largest_of_shard


@dataclass(frozen=True, slots=True)
class VocabShard:
    """ids: of this rank, whose logits stand first in a row. all_gather: [...] -> [ranks, ...], of all ranks, whose ids
    follow each other; every rank calls it for the same rows."""

    ids: range
    vocab_size: int
    all_gather: Callable[[Tensor], Tensor]

    def whole(self, logits: Tensor) -> Tensor:
        """[N, width] -> [N, vocab_size], new, last stride 1: the logits of all ranks. Rows are as wide on all ranks;
        what is no id's logit stands at the end of the last one's."""
        ranks = self.all_gather(logits)
        return ranks.transpose(0, 1).reshape(len(logits), -1)[:, : self.vocab_size]

    def sample(self, logits: Tensor, columns: Mapping[str, Tensor], *, is_greedy: bool) -> Tensor:
        """As `sampler.sample` without filters. Two exchanges of 8 bytes a row, one if all is greedy: instead of the
        logits, which are a thousand times that."""
        own = logits[:, : len(self.ids)]
        largest, token_ids = self._best(*largest_of_shard(own, self.ids.start))
        if not is_greedy:
            temperature, seeds, positions = columns["temperature"], columns["seeds"], columns["sample_positions"]
            best = best_of_shard(own, largest, temperature, seeds, positions, self.ids.start)
            token_ids = torch.where(temperature > 0, self._best(*best)[1], token_ids)
        return torch.where(largest.isfinite(), token_ids, -1).long()

    def _best(self, values: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """values [N] fp32, token_ids [N] int32, of each rank's best -> of the best of all."""
        pairs = self.all_gather(torch.stack((values.view(torch.int32), token_ids), dim=-1))
        best, rank = pairs[..., 0].contiguous().view(torch.float32).max(dim=0)
        return best, pairs[..., 1].gather(0, rank[None])[0]
