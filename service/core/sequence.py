"""One choice of a request: its tokens and how many of them are computed.

Prefill, decode, chunked prefill and recomputation are one idea: a sequence has tokens, of which
`num_computed_tokens` have keys and values in the cache; an iteration is given some of the rest. Computing a
position below `recompute_until` is recomputation: it was computed before a preemption. `block_digests` and
`num_cached_blocks` are the prefix cache's notes: digests of the first blocks, and how many it has been offered.
"""

from __future__ import annotations

from service.core.iteration_plan import Sample
from service.core.request import FinishReason


class Sequence:
    """Owned by the engine thread; changed only by the scheduler and in the engine's apply."""

    __slots__ = (
        "block_digests",
        "choice_index",
        "draw",
        "finish_reason",
        "num_cached_blocks",
        "num_computed_tokens",
        "num_prompt_tokens",
        "recompute_until",
        "sequence_id",
        "token_ids",
    )

    def __init__(
        self, sequence_id: int, choice_index: int, seed: int, token_ids: list[int], num_prompt_tokens: int
    ) -> None:
        self.sequence_id = sequence_id
        self.choice_index = choice_index
        self.draw = Sample(sequence_id, seed)
        self.token_ids = token_ids
        self.num_prompt_tokens = num_prompt_tokens
        self.num_computed_tokens = 0
        self.recompute_until = 0
        self.finish_reason: FinishReason | None = None
        self.block_digests: list[bytes] = []
        self.num_cached_blocks = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_tokens_to_compute(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens
