"""What the engine's thread sends to the event loop: events of all requests, in order; a batch's tokens as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from service.core.events import StreamEvent

Addressed = tuple[str, StreamEvent]
"""(request id, event)."""


class BatchTokens(NamedTuple):
    """The plain tokens of one iteration of the decode batch: token_ids[i] is for request_ids[i]. While the batch has
    the same members, `request_ids` is the same object."""

    request_ids: Sequence[str]
    token_ids: tuple[int, ...]


News = Addressed | BatchTokens
"""One entry of the outbox."""


class Outbox(list[News]):
    """Events still to be sent, in order. Engine thread only."""

    def take(self) -> list[News]:
        """Remove and return all of them."""
        taken = list(self)
        self.clear()
        return taken


def one_by_one(news: Iterable[News]) -> Iterator[Addressed]:
    """The same events in the same order, with each BatchTokens split into (request id, token id) pairs."""
    for each in news:
        if isinstance(each, BatchTokens):
            yield from zip(each.request_ids, each.token_ids, strict=True)
        else:
            yield each
