"""Predicted cost of a preemption, by recomputation and by swapping (AdaptiveLLM 3.2, 3.3).

The paper predicts each on its own; here it is what they add to the iterations that carry them (`PreemptionCost`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from service.prediction.iteration_time import IterationTime
from service.prediction.swap_time import Copies, SwapTime
from service.prediction.workload import Workload


class Recovery(Enum):
    """How a preempted group comes back."""

    RECOMPUTE = auto()
    SWAP = auto()


class RecoveryCosts(NamedTuple):
    """Predicted seconds by which everything else is delayed; None before the predictor has observed enough."""

    recompute_s: float | None
    swap_s: float | None

    @property
    def cheaper(self) -> Recovery:
        """Recomputation if either is unknown."""
        if self.swap_s is None or self.recompute_s is None:
            return Recovery.RECOMPUTE
        return Recovery.SWAP if self.swap_s < self.recompute_s else Recovery.RECOMPUTE


class PreemptionCost:
    """Engine thread only. max_tokens: token budget of an iteration, which cuts recomputation into chunks.

    Recomputation: its chunks are added to iterations that decode anyhow. A chunk costs the predicted time of the
    iteration with it minus that without it; the difference includes that decodes alone may run in a faster way or be
    padded differently. Until its last chunk the group holds memory and draws nothing, in one iteration per earlier
    chunk. If nothing else runs, its iterations count in full.

    Swapping: the copies run beside an iteration, on a stream of their own, launched after the device has its work. They
    lengthen the iteration by `SwapTime.added_share` of their seconds: next to nothing on a GPU, all on a CPU, which
    copies before it computes. But memory is unused meanwhile. Blocks on the way out are free only once the executor
    reports it, so the groups that needed them skip an iteration, or more if the copies take longer; so does the group
    when it is swapped in. If nothing else runs, everything waits for the copies.

    A group that skips an iteration of B decodes loses one of B tokens: that costs 1/B of the iteration's time.
    """

    def __init__(self, iteration_time: IterationTime, swap_time: SwapTime, max_tokens: int) -> None:
        self.iteration_time = iteration_time
        self.swap_time = swap_time
        self._max_tokens = max_tokens

    def predict(self, num_tokens: int, num_kept: int, num_blocks: int, beside: Workload) -> RecoveryCosts:
        """Costs of preempting a group with `num_tokens` computed tokens in `num_blocks` blocks, beside others' decodes.

        num_kept: how many of the tokens will still be in the prefix cache, because others use them.
        """
        decode_s = self.iteration_time.predicted_s(beside) if beside.num_decodes else 0.0
        if decode_s is None:
            return RecoveryCosts(None, None)
        token_s = decode_s / max(1, beside.num_decodes)
        return RecoveryCosts(
            self._recompute_s(self._chunks(num_kept, num_tokens, beside), decode_s, token_s),
            self._swap_s(num_blocks, decode_s, token_s),
        )

    def _chunks(self, start: int, end: int, beside: Workload) -> Iterator[Workload]:
        """The iterations that recompute tokens start, ..., end - 1 beside `beside`, each as many as fit."""
        room = max(1, self._max_tokens - beside.num_decodes)
        for first in range(start, end, room):
            yield beside.with_chunk(first, min(room, end - first))

    def _recompute_s(self, chunks: Iterator[Workload], decode_s: float, token_s: float) -> float | None:
        added_s, num_chunks = 0.0, 0
        for work in chunks:
            with_chunk_s = self.iteration_time.predicted_s(work)
            if with_chunk_s is None:
                return None
            added_s += max(0.0, with_chunk_s - decode_s)
            num_chunks += 1
        return added_s + token_s * max(0, num_chunks - 1)

    def _swap_s(self, num_blocks: int, decode_s: float, token_s: float) -> float | None:
        added_s = 0.0
        for to_host in (True, False):
            copies_s = self.swap_time.predicted_s(Copies(to_host, num_blocks))
            if copies_s is None:
                return None
            if decode_s:
                added_s += self.swap_time.added_share * copies_s + token_s * math.ceil(copies_s / decode_s)
            else:
                added_s += copies_s
        return added_s
