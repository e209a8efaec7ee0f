"""How a request's next tokens are chosen and when its sequences end: checked values, never wire shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.core.embedding import Pooling


@dataclass(frozen=True, slots=True)
class BeamParams:
    """Beam search instead of drawing, as Hugging Face's `generate` does it.

    width: beams, >= 2. length_penalty: finished beams are compared by their sum of log probabilities over
    length ** length_penalty. early_stopping: True ends with the width-th finished beam, False once no beam seems able
    to become better than those, "never" once none can be. num_logprobs: as of SamplingParams, for the beams that are
    shown.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Validated in `api`; nothing behind it checks again.

    max_tokens: tokens each choice may generate.
    n: choices (sequences) of the request, >= 1. Choice i draws with `seed + i`.
    temperature: >= 0; 0 is greedy (argmax).
    top_p: in (0, 1]; 1 keeps all. top_k: >= 0; 0 keeps all.
    seed: int64; always set (`api` draws one when the client gives none). A draw is a function of
        (seed, position) alone, so it does not depend on what else is in the batch.
    stop_token_ids: ids that end a sequence with reason `stop`; end-of-sequence ids are among them unless the
        client asked to ignore them.
    min_p: in [0, 1]; tokens less than min_p times as probable as the best are dropped; 0 keeps all.
    presence_penalty, frequency_penalty: over generated tokens; 0 for none. repetition_penalty: > 0, over prompt and
        generated tokens; 1 for none.
    logit_bias: (token id, addend) pairs, each id once.
    allowed_token_ids: sorted, not empty; nothing else may be drawn. None: anything may.
    bad_words: sequences of ids that must not be generated; none is empty.
    min_tokens: tokens generated before a stop_token_id may be drawn.
    num_logprobs: log probabilities of each drawn token and of this many most probable ones; None: not wanted.
    logprob_token_ids: instead of the most probable tokens these are told, in this order; num_logprobs is how many.
    num_prompt_logprobs: the same of the prompt's tokens. The prefix cache is then not asked.

    beam: then nothing is drawn, and n of its beams, at most width, are the choices. num_logprobs is then at least
        width + the number of stop_token_ids, so that enough of the best next tokens do not end a beam, and no less than
        the beam's own.
    deterministic: tokens and log probabilities are to the last bit those that the request has alone.
    pooling: the prompt's hidden states are wanted, pooled; max_tokens is then 0. With mean, which needs all of them,
        the prefix cache is not asked.

    max_tokens may be 0: then the prompt is computed and nothing is drawn.
    """

    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    beam: BeamParams | None = None
    pooling: Pooling | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        assert self.pooling is None or self.max_tokens == 0, "what is pooled draws nothing"

    @property
    def num_sequences(self) -> int:
        """Sequences that run side by side for the request."""
        return self.n if self.beam is None else self.beam.width

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def looks_back(self) -> bool:
        """Whether a draw depends on the sequence's earlier ids, or on how many of them were generated."""
        return self.has_penalties or bool(self.bad_words) or self.min_tokens > 0

    @property
    def needs_ids_on_host(self) -> bool:
        """Whether the host must know the last id before the next can be drawn."""
        return any(len(word) > 1 for word in self.bad_words)

    @property
    def is_plain(self) -> bool:
        """Whether temperature, top-k and top-p say everything about the draws, and only the ids are wanted."""
        return not (
            self.looks_back
            or self.min_p
            or self.logit_bias
            or self.allowed_token_ids is not None
            or self.num_logprobs is not None
            or self.num_prompt_logprobs is not None
            or self.pooling is not None
        )
