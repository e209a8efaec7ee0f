"""Draws under tensor parallelism, where each rank has the logits of some ids; the result equals that of one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.best_of_shard import best_of_shard, largest_of_shard


@dataclass(frozen=True, slots=True)
class VocabShard:
    """ids: this rank's; their logits come first in a row. all_gather: [...] -> [ranks, ...]; the ranks' ids are
    consecutive, and all ranks must call it for the same rows."""

    ids: range
    vocab_size: int
    all_gather: Callable[[Tensor], Tensor]

    def whole(self, logits: Tensor) -> Tensor:
        """All ranks' logits: [N, width] -> [N, vocab_size], a new tensor with last stride 1. Rows have the same width
        on all ranks; padding is at the end of the last rank's rows."""
        ranks = self.all_gather(logits)
        return ranks.transpose(0, 1).reshape(len(logits), -1)[:, : self.vocab_size]

    def sample(self, logits: Tensor, columns: Mapping[str, Tensor], *, is_greedy: bool) -> Tensor:
        """As `sampler.sample` without filters. Exchanges 8 bytes per row, twice (once if all draws are greedy), not the
        logits, which are a thousand times as much."""
        own = logits[:, : len(self.ids)]
        largest, token_ids = self._best(*largest_of_shard(own, self.ids.start))
        if not is_greedy:
            temperature, seeds, positions = columns["temperature"], columns["seeds"], columns["sample_positions"]
            best = best_of_shard(own, largest, temperature, seeds, positions, self.ids.start)
            token_ids = torch.where(temperature > 0, self._best(*best)[1], token_ids)
        return torch.where(largest.isfinite(), token_ids, -1).long()

    def _best(self, values: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Best over all ranks of each rank's best. values [N] fp32, token_ids [N] int32."""
        pairs = self.all_gather(torch.stack((values.view(torch.int32), token_ids), dim=-1))
        best, rank = pairs[..., 0].contiguous().view(torch.float32).max(dim=0)
        return best, pairs[..., 1].gather(0, rank[None])[0]
