from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.response_store import ResponseStore, StoredResponse
from service.errors import NotFound


def stored(num_bytes: int = 10, client: str = "ann") -> StoredResponse:
    return StoredResponse(client, b"[]", b"x" * num_bytes)


@given(sizes=st.lists(st.integers(0, 5000), max_size=60))
def test_it_never_holds_more_than_it_may_and_the_oldest_go_first(sizes: list[int]) -> None:
    store = ResponseStore(max_entries=8, max_bytes=20_000)
    for number, size in enumerate(sizes):
        store.put(str(number), stored(size))
        if size % 2:
            store.complete(str(number // 2), b"y" * size)
        if size % 3 == 0:
            store.note_events(str(number // 2), size)
        kept = [each for each in range(number + 1) if has(store, str(each))]
        assert len(kept) == len(store) <= 8
        assert store.num_bytes == sum(store.get(str(each), "ann").num_bytes for each in kept) <= 20_000
        assert kept == list(range(number + 1 - len(kept), number + 1))


def has(store: ResponseStore, response_id: str, client: str = "ann") -> bool:
    try:
        store.get(response_id, client)
    except NotFound:
        return False
    return True


def test_one_that_is_too_large_by_itself_is_not_kept() -> None:
    store = ResponseStore(8, 10_000)
    store.put("a", stored(20_000))
    assert (len(store), store.num_bytes) == (0, 0)


def test_each_client_finds_its_own() -> None:
    store = ResponseStore(8, 10_000)
    store.put("a", stored())
    assert has(store, "a")
    assert not has(store, "a", "bob")
    with pytest.raises(NotFound):
        store.delete("a", "bob")
    store.delete("a", "ann")
    assert not has(store, "a")
    assert store.num_bytes == 0


def test_without_room_nothing_is_kept() -> None:
    assert not ResponseStore(8, 0).keeps
    assert ResponseStore(8, 1).keeps


def test_one_that_is_gone_is_not_completed_and_one_that_goes_is_stopped() -> None:
    async def run() -> None:
        store = ResponseStore(1, 10_000)
        tasks = [asyncio.create_task(asyncio.sleep(60)) for _ in range(3)]
        for number, task in enumerate(tasks[:2]):
            store.put(str(number), StoredResponse("ann", b"[]", b"{}", task))
        assert store.num_running("ann") == 1
        assert store.num_running("bob") == 0
        store.complete("0", b"late")
        assert len(store) == 1
        await asyncio.sleep(0)
        assert [task.cancelled() for task in tasks] == [True, False, False]
        store.close()
        await asyncio.sleep(0)
        assert tasks[1].cancelled()
        assert (len(store), store.num_bytes) == (0, 0)
        tasks[2].cancel()

    asyncio.run(run())
