"""What has been sent to the engine's thread and has not started, counted from any thread without a lock."""

from __future__ import annotations

from typing import NamedTuple

from service.core.request import Request
from service.core.stats import EngineSnapshot


class Queued(NamedTuple):
    """Requests that have not started, and tokens of theirs to compute. distinct_tokens: those of a beginning that
    several prompts share counted once, but for prompts that the thread has not taken yet."""

    requests: int
    tokens: int
    distinct_tokens: int


class Amount(NamedTuple):
    """A number of requests and of prompt tokens."""

    requests: int = 0
    tokens: int = 0

    def with_one_more(self, request: Request) -> Amount:
        return Amount(self.requests + 1, self.tokens + request.num_prompt_tokens)


class Known(NamedTuple):
    """What other threads know of the engine: one object, replaced whole, so that no request is missing from both.

    taken: of the inbox so far, all of which the snapshot tells of.
    """

    snapshot: EngineSnapshot
    taken: Amount

    def queued(self, sent: Amount) -> Queued:
        """What has not started. sent: to the inbox so far."""
        num_tokens_sent = sent.tokens - self.taken.tokens
        return Queued(
            self.snapshot.num_waiting + sent.requests - self.taken.requests,
            self.snapshot.waiting_tokens + num_tokens_sent,
            self.snapshot.distinct_waiting_tokens + num_tokens_sent,
        )
