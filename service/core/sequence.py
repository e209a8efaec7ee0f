"""One choice of a request: its tokens and how many of them are computed.

Prefill, decode, chunked prefill and recomputation are one idea: a sequence has tokens, of which
`num_computed_tokens` have keys and values in the cache; an iteration is given some of the rest. Computing a
position below `recompute_until` is recomputation: it was computed before a preemption. `block_digests` and
`num_cached_blocks` are the prefix cache's notes: digests of the first blocks, and how many it has been offered.

What an iteration computes counts as computed from its launch on, and the id that it draws has its place among the
tokens, as PENDING_TOKEN_ID, until the result is there. `last_iteration` numbers the last launch that it was part of.
`matcher` stands after the last token, if the output has a grammar; a preemption leaves it as it is.

A beam that is computed to its end keeps its `top`, the best next tokens, until those of its siblings are there.
"""

from __future__ import annotations

from service.core.grammar import Matcher
from service.core.request import FinishReason
from service.core.scheduled_sequence import PENDING_TOKEN_ID, Sample


class Sequence:
    """Owned by the engine thread; changed only by the scheduler and in the engine's apply."""

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
        """Prompt and generated ones, with those that are pending."""
        return len(self.token_ids)

    @property
    def num_tokens_to_cache(self) -> int:
        """Tokens whose keys and values are wanted: all but a last one, after which nothing comes."""
        return min(len(self.token_ids), self.max_num_tokens - 1)

    @property
    def num_tokens_to_compute(self) -> int:
        """Of `num_tokens_to_cache`, those that no iteration has been launched for."""
        return min(len(self.token_ids), self.max_num_tokens - 1) - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        """Generated ones, with those that are pending."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_drawn_out(self) -> bool:
        """Whether its last token is drawn, or being drawn: it computes no more."""
        return len(self.token_ids) >= self.max_num_tokens

    def set_drawn(self, position: int, token_id: int) -> None:
        """The token at `position`, the first whose id is not known, is drawn."""
        if position == len(self.token_ids):
            self.token_ids.append(token_id)
        else:
            assert self.token_ids[position] == PENDING_TOKEN_ID
            self.token_ids[position] = token_id

    @property
    def num_known_tokens(self) -> int:
        """Tokens before a draw that failed, or whose id is not known."""
        num_known = len(self.token_ids)
        while self.token_ids[num_known - 1] < 0:
            num_known -= 1
        return num_known

    def drop_pending(self) -> None:
        """Forget draws that failed, or whose ids are not known: the sequence ends before them."""
        del self.token_ids[self.num_known_tokens :]
