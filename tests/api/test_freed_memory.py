from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from service.api.freed_memory import FreedMemory


def test_it_is_given_back_once_for_all_that_was_done_meanwhile_and_not_on_the_event_loop() -> None:
    async def scene() -> None:
        trimmed: list[str] = []
        threads = ThreadPoolExecutor(1, thread_name_prefix="there")
        freed = FreedMemory(threads, lambda: trimmed.append(threading.current_thread().name), after_s=0.05)
        for _ in range(5):
            freed.trim_soon()
        assert trimmed == []
        await until(lambda: len(trimmed) == 1)
        await asyncio.sleep(0.1)
        assert [name.partition("_")[0] for name in trimmed] == ["there"]
        freed.trim_soon()
        await until(lambda: len(trimmed) == 2)
        freed.trim_soon()
        freed.close()
        await asyncio.sleep(0.1)
        assert len(trimmed) == 2
        threads.shutdown()

    asyncio.run(scene())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_what_the_c_library_offers_can_be_called() -> None:
    async def scene() -> None:
        threads = ThreadPoolExecutor(1)
        FreedMemory(threads, after_s=0.0).trim_soon()
        await asyncio.sleep(0.01)
        threads.shutdown()

    asyncio.run(scene())
