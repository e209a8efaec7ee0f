"""Pooled hidden states on their way from the device to the engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from service.core.embedding import Vector
from service.core.scheduled_sequence import ScheduledSequence
from service.runner.device_copies import AsyncCopy, to_device
from service.runner.selective_batching import FlatBatch


class PooledStates:
    """One vector per sequence, being copied to the host."""

    def __init__(self, sequence_ids: Sequence[int], sums: Tensor) -> None:
        self._sequence_ids = sequence_ids
        self._copy = AsyncCopy(sums)

    def wait(self) -> tuple[tuple[int, Vector], ...]:
        """As in IterationResult."""
        (sums,) = self._copy.wait()
        return tuple(zip(self._sequence_ids, sums.numpy(), strict=True))


def pool(
    scheduled: Sequence[ScheduledSequence], batch: FlatBatch, hidden: Tensor, device: torch.device
) -> PooledStates | None:
    """hidden [T, hidden_size]: of all tokens of a batch that ends with `scheduled`. None if nothing is pooled.

    Sums are in fp32 and per sequence: the rest of the batch does not change them.
    """
    starts = batch.token_starts[batch.num_seqs - len(scheduled) :].tolist()
    ends = [start + len(item.token_ids) for item, start in zip(scheduled, starts, strict=True)]
    items = [(item, end) for item, end in zip(scheduled, ends, strict=True) if item.num_pooled]
    if not items:
        return None
    if all(item.num_pooled == 1 for item, _ in items):
        places = to_device({"places": np.array([end - 1 for _, end in items])}, device)["places"]
        sums = hidden.index_select(0, places).float()
    else:
        sums = torch.stack([hidden[end - item.num_pooled : end].sum(0, dtype=torch.float32) for item, end in items])
    return PooledStates([item.sequence_id for item, _ in items], sums)
