from __future__ import annotations

from service.core.watchers import Watchers


def test_news_reach_everybody_who_watches_that_name_and_nobody_else() -> None:
    watchers = Watchers()
    with watchers.watched("a") as first, watchers.watched("b") as other:
        with watchers.watched("a") as second:
            watchers.tell("a")
            assert (first.is_set(), second.is_set(), other.is_set()) == (True, True, False)
        first.clear(), second.clear()
        watchers.tell("a")
        assert (first.is_set(), second.is_set()) == (True, False), "who has gone is not told"
        watchers.tell_all()
        assert other.is_set()
    other.clear()
    watchers.tell_all()
    watchers.tell("nobody")
    assert not other.is_set()
