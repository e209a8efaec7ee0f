from __future__ import annotations

import asyncio
import threading

import pytest

from service.api.text_pool import TextPool
from service.core.host_times import HostTimes


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
