from __future__ import annotations

from service.core.events import LockstepTokens, TokenEvent, one_by_one


def test_tokens_of_many_requests_are_one_event_of_each():
    full = TokenEvent(0, 4, None)
    news = [("a", 3), LockstepTokens(("a", "b"), (5, 6)), ("b", full), LockstepTokens((), ())]
    assert list(one_by_one(news)) == [("a", 3), ("a", 5), ("b", 6), ("b", full)]
