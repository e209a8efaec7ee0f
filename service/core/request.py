"""A checked request: what the engine is asked to do. Immutable, so it may cross threads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from service.core.adapter import Adapter
from service.core.grammar import Grammar
from service.core.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Why a sequence ended normally."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how to continue it.

    request_id: unique in the process; made by the service, never taken from a client.
    prompt_token_ids: at least one id; each is inside the vocabulary.
    arrival_s: when it was received, on the engine's clock.
    cache_salt: requests with different salts never share cached prefixes.
    priority: higher goes first, if the scheduling policy uses priorities.
    client: name of the API key that sent it, for fair shares. Never a label of a metric.
    grammar: what every choice's output must match; None: anything. A choice ends when nothing can follow.
    is_background: gives way to all requests that are not (it is a line of a batch job).
    adapter: LoRA adapter to apply; None: the base model.
    start_within_s: fail the request if its first iteration comes later than this after arrival; None: no such limit.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_s: float
    cache_salt: str = ""
    priority: int = 0
    client: str = ""
    grammar: Grammar | None = None
    adapter: Adapter | None = None
    is_background: bool = False
    start_within_s: float | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def prefix_salt(self) -> str:
        """Keeps cached prefixes apart: by the client's salt, by the weights that compute them, and by whether they are
        computed deterministically."""
        # A digest has no colon and no equals sign, so no salt that a client chooses can imitate another combination.
        how = "=" if self.sampling.deterministic else ""
        return f"{how}{'' if self.adapter is None else self.adapter.digest}:{self.cache_salt}"

    @property
    def needs_ids_on_host(self) -> bool:
        """Whether the host must know the last id before the next can be drawn. Its iterations do not overlap then."""
        sampling = self.sampling
        return self.grammar is not None or sampling.beam is not None or sampling.needs_ids_on_host

    @property
    def may_draft(self) -> bool:
        """Whether it may have drafts (speculative decoding): it has one choice, and computing a wrong token leaves no
        trace except a cache slot that is overwritten."""
        return self.sampling.num_sequences == 1 and not (self.needs_ids_on_host or self.sampling.has_penalties)

    @property
    def max_num_tokens(self) -> int:
        """The longest that one of its sequences can become, prompt included.

        With max_tokens = 0 it is as for 1, so that the whole prompt is computed.
        """
        return len(self.prompt_token_ids) + max(1, self.sampling.max_tokens)
