"""The events of a stream: what was asked for about the prompt, then tokens, then exactly one final event.

Immutable; they cross threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from service.core.embedding import Vector
from service.core.request import FinishReason
from service.core.stats import RequestStats
from service.core.token_logprobs import TokenLogprobs
from service.errors import RequestError


class Outcome(StrEnum):
    """How an accepted request ended."""

    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


class TokenEvent(NamedTuple):
    """Choice `choice_index` got `token_id`. `finish_reason` is set on the choice's last token.

    A stop token that ends the choice is delivered too, with reason `stop`. logprobs: None unless asked for.
    """

    choice_index: int
    token_id: int
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None


class PromptEvent(NamedTuple):
    """The prompt's logprobs, if asked for: one entry per prompt token except the first.

    Comes once, before all tokens.
    """

    logprobs: tuple[TokenLogprobs, ...]


class PooledEvent(NamedTuple):
    """The prompt's pooled hidden states, if asked for. Comes once, before the final event."""

    vector: Vector


@dataclass(frozen=True, slots=True)
class FinalEvent:
    """The last event of a request. `error` is set if and only if the outcome is FAILED."""

    outcome: Outcome
    stats: RequestStats
    error: RequestError | None = None

    def __post_init__(self) -> None:
        assert (self.error is not None) == (self.outcome is Outcome.FAILED)


StreamEvent = int | TokenEvent | PromptEvent | PooledEvent | FinalEvent
"""An int is a plain token: the next token id of a request with one choice, which goes on and has nothing else to
report. Nearly all events are plain tokens, so they cost no object."""
