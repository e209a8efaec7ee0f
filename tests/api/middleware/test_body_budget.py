from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.middleware.body_budget import BodyBudget, BodyShare
from service.errors import Overloaded

MOST = 100
events = st.lists(st.tuples(st.sampled_from(["take", "finish", "give back"]), st.integers(0, 9), st.integers(1, 60)))


@given(events)
def test_never_more_than_the_budget_and_exactly_what_the_shares_hold(events: list[tuple[str, int, int]]) -> None:
    budget = BodyBudget(MOST)
    shares = [budget.share() for _ in range(10)]
    under_way = set(range(len(shares)))
    for event, index, num_bytes in events:
        share = shares[index]
        if event == "finish":
            share.finish()
            under_way.discard(index)
        elif event == "give back" or share.is_evicted:
            share.release()
            under_way.discard(index)
        elif index in under_way and not took(share, num_bytes):
            under_way.discard(index)
        assert budget.num_bytes == sum(share.num_bytes for share in shares) <= MOST
    for share in shares:
        share.release()
    assert budget.num_bytes == 0


def took(share: BodyShare, num_bytes: int) -> bool:
    """Whether it had room; else it is given back, as the end of its request does."""
    try:
        share.take(num_bytes)
    except Overloaded as refusal:
        assert refusal.retry_after_s > 0
        share.release()
        return False
    return True


def test_the_largest_gives_way_to_a_smaller_one_and_no_more_than_that() -> None:
    budget = BodyBudget(MOST)
    large, larger, small = (budget.share() for _ in range(3))
    large.take(40)
    larger.take(60)
    small.take(1)
    assert (large.is_evicted, larger.is_evicted) == (False, True)
    assert budget.num_bytes == 41


def test_the_largest_is_refused_when_it_wants_more() -> None:
    budget = BodyBudget(MOST)
    held = [budget.share() for _ in range(10)]
    for share in held:
        share.take(10)
    with pytest.raises(Overloaded, match="have 100 bytes; the limit is 100"):
        held[0].take(1)
    assert not any(share.is_evicted for share in held)


def test_a_complete_body_does_not_give_way() -> None:
    budget = BodyBudget(MOST)
    complete, small = budget.share(), budget.share()
    complete.take(MOST)
    complete.finish()
    with pytest.raises(Overloaded):
        small.take(1)
    complete.release()
    small.take(1)
    assert not complete.is_evicted


def test_what_is_declared_takes_nothing_and_is_refused_only_where_it_would_have_to_give_way() -> None:
    budget = BodyBudget(MOST)
    for _ in range(10):
        budget.check_room(MOST)
    large = budget.share()
    large.take(90)
    budget.check_room(10)
    budget.check_room(89)
    with pytest.raises(Overloaded):
        budget.check_room(90)
    assert (large.is_evicted, budget.num_bytes) == (False, 90)


def test_a_wait_for_more_ends_when_the_share_is_lost() -> None:
    async def scene() -> None:
        budget = BodyBudget(MOST)
        stalled, small = budget.share(), budget.share()
        stalled.take(MOST)
        asyncio.get_running_loop().call_later(0.01, small.take, 1)
        with pytest.raises(TimeoutError):
            async with stalled.wait_until(asyncio.get_running_loop().time() + 60):
                await asyncio.Event().wait()
        assert stalled.is_evicted

    asyncio.run(scene())
