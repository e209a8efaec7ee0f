"""One choice of a request: its tokens, and how many of them are computed.

Prefill, decode, chunked prefill and recomputation are one idea: the keys and values of the first `num_computed_tokens`
tokens are in the cache, and an iteration computes some of the others. Computing a position below `recompute_until` is
recomputation: it was computed before a preemption. `block_digests` (of the first blocks) and `num_cached_blocks` (how
many blocks were offered to it) belong to the prefix cache.

Tokens count as computed from the launch of their iteration on, and the drawn id is in `token_ids` as PENDING_TOKEN_ID
until the result is there. `last_iteration` is the number of the last launched iteration with this sequence. `matcher`,
if the output has a grammar, is at the position after the last token; a preemption does not change it.

`top`, only in beam search: a beam's best next tokens, kept until all of its siblings have theirs.
"""

from __future__ import annotations

from service.core.grammar import Matcher
from service.core.request import FinishReason
from service.core.scheduled_sequence import PENDING_TOKEN_ID, Sample


class Sequence:
    """Owned by the engine thread; changed only by the scheduler and by the engine's apply."""

    __slots__ = (
        "block_digests",
        "choice_index",
        "draw",
        "draws",
        "finish_reason",
        "last_iteration",
        "matcher",
        "max_num_tokens",
        "num_cached_blocks",
        "num_computed_tokens",
        "num_prompt_tokens",
        "recompute_until",
        "sequence_id",
        "token_ids",
        "top",
    )

    def __init__(
        self,
        sequence_id: int,
        choice_index: int,
        seed: int,
        token_ids: list[int],
        num_prompt_tokens: int,
        max_num_tokens: int,
    ) -> None:
        self.sequence_id = sequence_id
        self.choice_index = choice_index
        self.draw = Sample(sequence_id, seed)
        self.draws = (self.draw,)
        self.token_ids = token_ids
        self.num_prompt_tokens = num_prompt_tokens
        self.max_num_tokens = max_num_tokens
        self.num_computed_tokens = 0
        self.recompute_until = 0
        self.finish_reason: FinishReason | None = None
        self.matcher: Matcher | None = None
        self.block_digests: list[bytes] = []
        self.num_cached_blocks = 0
        self.last_iteration = 0
        self.top: tuple[tuple[int, float], ...] | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens, including pending ones."""
        return len(self.token_ids)

    @property
    def num_tokens_to_cache(self) -> int:
        """Tokens whose keys and values are needed: all but the last possible one, which nothing follows."""
        return min(len(self.token_ids), self.max_num_tokens - 1)

    @property
    def num_tokens_to_compute(self) -> int:
        """Those of `num_tokens_to_cache` for which no iteration was launched yet."""
        return min(len(self.token_ids), self.max_num_tokens - 1) - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens, including pending ones."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_drawn_out(self) -> bool:
        """Whether its last token was drawn or is being drawn: nothing is left to compute."""
        return len(self.token_ids) >= self.max_num_tokens

    def set_drawn(self, position: int, token_id: int) -> None:
        """Store the id drawn for `position`, the first position whose id is not known."""
        if position == len(self.token_ids):
            self.token_ids.append(token_id)
        else:
            assert self.token_ids[position] == PENDING_TOKEN_ID
            self.token_ids[position] = token_id

    @property
    def num_known_tokens(self) -> int:
        """Tokens before the first that is pending or whose draw failed."""
        num_known = len(self.token_ids)
        while self.token_ids[num_known - 1] < 0:
            num_known -= 1
        return num_known

    def drop_pending(self) -> None:
        """Remove tokens that are pending or whose draw failed."""
        del self.token_ids[self.num_known_tokens :]
