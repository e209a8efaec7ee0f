from __future__ import annotations

from service.core.events import TokenEvent
from service.engine.outbox import BatchTokens, one_by_one


def test_tokens_of_many_requests_are_one_event_of_each():
    full = TokenEvent(0, 4, None)
    news = [("a", 3), BatchTokens(("a", "b"), (5, 6)), ("b", full), BatchTokens((), ())]
    assert list(one_by_one(news)) == [("a", 3), ("a", 5), ("b", 6), ("b", full)]
