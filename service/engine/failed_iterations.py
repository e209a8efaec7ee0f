"""Whether an iteration has failed, by the events that it gave. Iterations that keep failing: engine_watch.py."""

from __future__ import annotations

from collections.abc import Iterable

from service.core.events import FinalEvent, Outcome, TokenEvent
from service.engine.outbox import BatchTokens, News
from service.errors import ServerError


def gave_something(events: Iterable[News]) -> bool | None:
    """Whether the iteration with these events gave any request a token or a regular end. False if no request got
    anything and some failed by a server fault. None if there was nothing to give."""
    verdict = None
    for news in events:
        if isinstance(news, BatchTokens):
            return True
        match news[1]:
            case int() | TokenEvent() | FinalEvent(outcome=Outcome.FINISHED):
                return True
            case FinalEvent(error=ServerError()):
                verdict = False
    return verdict
