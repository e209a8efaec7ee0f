"""What a preemption costs, predicted both ways (AdaptiveLLM 3.2, 3.3): computing again, or moving out and in."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from service.prediction.iteration_time import IterationTime, Workload
from service.prediction.swap_time import SwapTime


class Recovery(Enum):
    """How a preempted group comes back."""

    RECOMPUTE = auto()
    SWAP = auto()


class RecoveryCosts(NamedTuple):
    """Predicted seconds; None where the predictor has not seen enough yet."""

    recompute_s: float | None
    swap_s: float | None


class PreemptionCost:
    """Engine thread only. max_tokens_an_iteration: recomputation goes in chunks of it."""

    def __init__(self, iteration_time: IterationTime, swap_time: SwapTime, max_tokens_an_iteration: int) -> None:
        self.iteration_time = iteration_time
        self.swap_time = swap_time
        self._max_tokens = max_tokens_an_iteration

    def predict(self, num_tokens: int, num_kept: int, num_blocks: int) -> RecoveryCosts:
        """For a group that has computed `num_tokens` in `num_blocks` blocks.

        num_kept: of the tokens, those that the prefix cache will still hold, because others use them.
        """
        return RecoveryCosts(
            self._recompute_s(num_tokens, num_kept) if self.iteration_time.is_known else None,
            self.swap_time.seconds(num_blocks) if self.swap_time.is_known else None,
        )

    def _recompute_s(self, num_tokens: int, num_kept: int) -> float:
        seconds = 0.0
        for start in range(num_kept, num_tokens, self._max_tokens):
            chunk = min(self._max_tokens, num_tokens - start)
            seconds += self.iteration_time.seconds(Workload.of_chunk(start, chunk))
        return seconds
