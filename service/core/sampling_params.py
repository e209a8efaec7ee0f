"""How a request's tokens are chosen and when its sequences end: checked values, never wire shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.core.embedding import Pooling


@dataclass(frozen=True, slots=True)
class BeamParams:
    """Beam search in place of drawing, as in Hugging Face's `generate`.

    width: number of beams, >= 2. length_penalty: finished beams are ranked by (sum of log probabilities) /
    length ** length_penalty. early_stopping: True: end once `width` beams have finished; False: end once no beam seems
    able to beat these; "never": end once none can. num_logprobs: as in SamplingParams, for the returned beams.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Validated in `api`; nothing after that checks again.

    max_tokens: how many tokens each choice may generate. 0: compute the prompt and draw nothing.
    n: choices (sequences) of the request, >= 1. Choice i draws with `seed + i`.
    temperature: >= 0; 0 is greedy (argmax).
    top_p: in (0, 1]; 1 keeps all. top_k: >= 0; 0 keeps all.
    seed: int64; always set (`api` draws one if the client gives none). A draw is a function of (seed, position)
        alone, so it does not depend on what else is in the batch.
    stop_token_ids: ids that end a sequence with reason `stop`. They include the end-of-sequence ids, unless the client
        asked to ignore these.
    min_p: in [0, 1]; drops tokens less than min_p times as probable as the most probable one; 0 keeps all.
    presence_penalty, frequency_penalty: over generated tokens; 0: none. repetition_penalty: > 0, over prompt and
        generated tokens; 1: none.
    logit_bias: (token id, addend) pairs, each id once.
    allowed_token_ids: the only ids that may be drawn, sorted, not empty. None: any may.
    bad_words: sequences of ids that must not be generated; each has at least one id.
    min_tokens: how many tokens must be generated before a stop_token_id may be drawn.
    num_logprobs: return the log probability of each drawn token, and of this many most probable tokens; None: neither.
    logprob_token_ids: return the log probabilities of these tokens, in this order, not of the most probable ones;
        num_logprobs is their number.
    num_prompt_logprobs: as num_logprobs, for the prompt's tokens. The prefix cache is then not used.

    beam: beam search; then nothing is drawn, and the choices are the best n <= width beams. num_logprobs must then be
        at least width + (number of stop_token_ids), so that enough of the top tokens do not end a beam, and at least
        beam.num_logprobs.
    deterministic: tokens and log probabilities must be bit-identical to those of the request running alone.
    pooling: return the prompt's pooled hidden states; max_tokens must be 0. Mean pooling needs all of them, so the
        prefix cache is then not used.
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
        """How many sequences run side by side for the request."""
        return self.n if self.beam is None else self.beam.width

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def looks_back(self) -> bool:
        """Whether a draw depends on the sequence's earlier ids, or on how many were generated."""
        return self.has_penalties or bool(self.bad_words) or self.min_tokens > 0

    @property
    def needs_ids_on_host(self) -> bool:
        """Whether the host must know the last id before the next can be drawn."""
        return any(len(word) > 1 for word in self.bad_words)

    @property
    def is_plain(self) -> bool:
        """Whether temperature, top-k and top-p fully describe the draws, and nothing but the ids is returned."""
        return not (
            self.looks_back
            or self.min_p
            or self.logit_bias
            or self.allowed_token_ids is not None
            or self.num_logprobs is not None
            or self.num_prompt_logprobs is not None
            or self.pooling is not None
        )
