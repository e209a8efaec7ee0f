"""What a preemption costs, predicted both ways (AdaptiveLLM 3.2, 3.3): computing again, or moving out and in.

Not by itself, as in the paper, but by what it adds to the iterations that carry it (`PreemptionCost`).
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
    """Predicted seconds that everybody else is held up for; None where the predictor has not seen enough yet."""

    recompute_s: float | None
    swap_s: float | None

    @property
    def cheaper(self) -> Recovery:
        """Recomputation where one of them is not known yet."""
        if self.swap_s is None or self.recompute_s is None:
            return Recovery.RECOMPUTE
        return Recovery.SWAP if self.swap_s < self.recompute_s else Recovery.RECOMPUTE


class PreemptionCost:
    """Engine thread only. max_tokens: the token budget of an iteration, which recomputation is cut by.

    Recomputing. Its chunks ride along: each makes an iteration longer that decodes anyhow. So a chunk costs what the
    iteration is predicted to take with it, less what it takes without; that the executor computes decodes alone in a
    faster way, or pads the two to other sizes, is in the difference. Until its last chunk the group holds memory and
    draws nothing, one iteration for each chunk before. With nothing beside it, its iterations are all its own.

    Swapping. The copies begin with an iteration and run beside it, on a stream of their own, launched when the device
    has its work already: `SwapTime.added_share` of their seconds is what the iteration takes longer, next to nothing
    on a GPU and all of it on a CPU, which copies before it computes. But memory lies idle meanwhile. Blocks on their
    way out are free only when the executor tells that they have arrived, so whoever needed them sits out an iteration,
    or more if the copies outlast it; and who comes back sits out as many. With nothing beside, all wait for the copies.

    Who sits out an iteration of B decodes loses a token, which others would have drawn: 1/B of its time.
    """

    def __init__(self, iteration_time: IterationTime, swap_time: SwapTime, max_tokens: int) -> None:
        self.iteration_time = iteration_time
        self.swap_time = swap_time
        self._max_tokens = max_tokens

    def predict(self, num_tokens: int, num_kept: int, num_blocks: int, beside: Workload) -> RecoveryCosts:
        """For a group that has computed `num_tokens` in `num_blocks` blocks, while others decode `beside`.

        num_kept: of the tokens, those that the prefix cache will still hold, because others use them.
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
        """Iterations of `beside` that compute the tokens from `start` to `end` too, each as many as it has room for."""
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
