from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from service.api.disconnect import ClientGone
from service.api.freed_memory import FreedMemory
from service.api.text_pool import TextPool
from service.core.host_times import HostTimes
from service.errors import Overloaded

LONG = 2_000_000


async def stays() -> Message:
    """The `receive` of a client that waits for its answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def leaves() -> Message:
    return {"type": "http.disconnect"}


def test_short_work_is_done_at_once_and_long_work_elsewhere() -> None:
    async def scene() -> None:
        pool = TextPool(1, HostTimes())
        here = threading.get_ident()
        assert await pool.run(10, threading.get_ident) == here
        assert await pool.run(1_000_000, threading.get_ident) != here
        pool.close()

    asyncio.run(scene())


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_failure_is_raised(size: int) -> None:
    async def scene() -> None:
        pool = TextPool(1, HostTimes())
        with pytest.raises(ZeroDivisionError):
            await pool.run(size, lambda: 1 // 0)
        pool.close()

    asyncio.run(scene())


def test_the_loop_goes_on_meanwhile() -> None:
    async def scene() -> None:
        pool, gate = TextPool(1, HostTimes()), threading.Event()
        working = asyncio.create_task(pool.run(1_000_000, lambda: gate.wait(5)))
        await asyncio.sleep(0.01)
        assert not working.done()
        gate.set()
        assert await working
        pool.close()

    asyncio.run(scene())


def test_neither_short_prompts_nor_answers_wait_for_long_prompts() -> None:
    async def scene() -> None:
        pool, gate = TextPool(1, HostTimes()), threading.Event()
        held = [asyncio.create_task(pool.run_prompt(stays, LONG, lambda _: gate.wait(5))) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert await asyncio.wait_for(pool.run_prompt(stays, 10_000, lambda _: "ids"), 2) == "ids"
        assert await asyncio.wait_for(pool.run(LONG, lambda: "answer"), 2) == "answer"
        gate.set()
        assert all(await asyncio.gather(*held))
        pool.close()

    asyncio.run(scene())


def test_more_prompts_than_may_wait_are_refused_before_any_work() -> None:
    async def scene() -> None:
        pool, gate = TextPool(1, HostTimes(), max_waiting=3 * LONG), threading.Event()
        held = [asyncio.create_task(pool.run_prompt(stays, LONG, lambda _: gate.wait(5))) for _ in range(3)]
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded, match="6000000 characters are waiting") as refusal:
            await pool.run_prompt(stays, LONG, lambda _: pytest.fail("was done"))
        assert refusal.value.retry_after_s > 0
        gate.set()
        await asyncio.gather(*held)
        assert await pool.run_prompt(stays, 5 * LONG, lambda _: "alone, any size") == "alone, any size"
        pool.close()

    asyncio.run(scene())


def test_a_prompt_whose_client_leaves_while_it_waits_is_never_read() -> None:
    async def scene() -> None:
        pool, gate = TextPool(1, HostTimes(), max_waiting=2 * LONG), threading.Event()
        held: Awaitable[bool] = asyncio.create_task(pool.run_prompt(stays, LONG, lambda _: gate.wait(5)))
        await asyncio.sleep(0.01)
        done: list[int] = []
        for index in range(10):  # each makes room for the next
            with pytest.raises(ClientGone):
                await pool.run_prompt(leaves, LONG, lambda _, index=index: done.append(index))
        gate.set()
        assert await held
        await pool.run_prompt(stays, LONG, lambda _: None)
        assert done == []
        pool.close()

    asyncio.run(scene())


def test_long_work_can_see_that_its_client_has_left() -> None:
    async def scene() -> None:
        pool, begun, ended = TextPool(1, HostTimes()), threading.Event(), threading.Event()

        async def leaves_later() -> Message:
            await asyncio.to_thread(begun.wait, 5)
            return {"type": "http.disconnect"}

        def work(check_cancelled: Callable[[], None]) -> None:
            begun.set()
            try:
                while not ended.wait(0.001):
                    check_cancelled()
            except ClientGone:
                ended.set()
                raise

        with pytest.raises(ClientGone):
            await pool.run_prompt(leaves_later, LONG, work)
        assert await asyncio.to_thread(ended.wait, 5)
        pool.close()

    asyncio.run(scene())


def test_memory_is_given_back_after_large_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = []
    monkeypatch.setattr(FreedMemory, "trim_soon", lambda _: given_back.append(True))

    async def scene() -> None:
        pool = TextPool(1, HostTimes())
        for size in (10, 10_000):
            await pool.run(size, lambda: None)
            await pool.run_prompt(stays, size, lambda _: None)
        assert given_back == []
        await pool.run(1_000_000, lambda: None)
        with pytest.raises(ZeroDivisionError):
            await pool.run_prompt(stays, 1_000_000, lambda _: 1 // 0)
        assert len(given_back) == 2
        pool.close()

    asyncio.run(scene())
