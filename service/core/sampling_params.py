"""How a request's next tokens are chosen and when its sequences end: checked values, never wire shapes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Checked at the door; behind it nothing re-checks.

    max_tokens: tokens each choice may generate, >= 1.
    n: choices (sequences) of the request, >= 1. Choice i draws with `seed + i`.
    temperature: >= 0; 0 is greedy (argmax).
    top_p: in (0, 1]; 1 keeps all. top_k: >= 0; 0 keeps all.
    seed: int64; always set (the door draws one when the client gives none). A draw is a function of
        (seed, position) alone, so it does not depend on what else is in the batch.
    stop_token_ids: ids that end a sequence with reason `stop`; end-of-sequence ids are among them unless the
        client asked to ignore them.
    """

    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0
