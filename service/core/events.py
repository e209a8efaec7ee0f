"""What a stream receives: of the prompt what was asked for, tokens, then exactly one final event.

Immutable; they cross threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from service.core.embedding import Vector
from service.core.iteration import TokenLogprobs
from service.core.request import FinishReason
from service.core.stats import RequestStats
from service.errors import RequestError


class Outcome(StrEnum):
    """How an accepted request ended."""

    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


class TokenEvent(NamedTuple):
    """Choice `choice_index` got `token_id`; `finish_reason` is set on the choice's last token.

    A token that ends the choice by being a stop token is delivered too, with reason `stop`. logprobs: if asked for.
    """

    choice_index: int
    token_id: int
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None


class PromptEvent(NamedTuple):
    """The prompt is computed and its logprobs were asked for: one entry for each of its tokens but the first.

    Comes once, before every token.
    """

    logprobs: tuple[TokenLogprobs, ...]


class PooledEvent(NamedTuple):
    """The prompt's hidden states, pooled. Comes once, before the final event, of a request that asked for them."""

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
"""An int is the id of a token after which its request's only choice goes on, and of which nothing else is to be told.
Nearly all events are that, so they cost no object."""

Addressed = tuple[str, StreamEvent]
"""An event and the id of the request that it is for."""


class BatchTokens(NamedTuple):
    """What an iteration of the decode batch has to tell: one plain token for each of its requests. request_ids: as long
    as the batch is the same, the same object. token_ids: one for each."""

    request_ids: Sequence[str]
    token_ids: tuple[int, ...]


News = Addressed | BatchTokens
"""What crosses to the event loop."""


class Outbox(list[News]):
    """What is still to be sent, in order. Engine thread only."""

    def take(self) -> list[News]:
        """All of it, once."""
        taken = list(self)
        self.clear()
        return taken


def one_by_one(news: Iterable[News]) -> Iterator[Addressed]:
    """The same events, each by itself, in order."""
    for each in news:
        if isinstance(each, BatchTokens):
            yield from zip(each.request_ids, each.token_ids, strict=True)
        else:
            yield each
