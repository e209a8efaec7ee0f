from __future__ import annotations

import asyncio
import os
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from service.process.shutdown import ExitStatus, Shutdown


@contextmanager
def hang_up_by(handler: signal.Handlers) -> Iterator[None]:
    """As the process was started: under nohup it ignores SIGHUP, and so would its tests."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_signal_asks_and_the_second_hurries():
    async def scenario() -> None:
        ended: queue.Queue[int] = queue.Queue()
        shutdown = Shutdown(ended.put)
        shutdown.listen()
        forced = asyncio.create_task(shutdown.forced())
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(shutdown.requested(), 5)
        assert not forced.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(forced, 5)
        assert ended.empty(), "there is a moment for last words"
        assert ended.get(timeout=5) == ExitStatus.OK, "whatever the event loop does"
        assert shutdown.status is ExitStatus.OK

    asyncio.run(scenario())


def test_a_closed_terminal_asks_and_never_hurries():
    async def scenario() -> None:
        shutdown = Shutdown()
        shutdown.listen()
        forced = asyncio.create_task(shutdown.forced())
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.wait_for(shutdown.requested(), 5)
            await asyncio.sleep(0.05)
        assert not forced.done()
        forced.cancel()

    with hang_up_by(signal.SIG_DFL):
        asyncio.run(scenario())


def test_under_nohup_a_closed_terminal_changes_nothing():
    async def scenario() -> None:
        shutdown = Shutdown()
        shutdown.listen()
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        assert not shutdown.is_requested

    with hang_up_by(signal.SIG_IGN):
        asyncio.run(scenario())


def test_a_fault_ends_at_once_with_a_status_that_says_so():
    async def scenario() -> None:
        shutdown = Shutdown()
        assert not shutdown.is_requested
        shutdown.fail("a test")
        await asyncio.wait_for(shutdown.requested(), 5)
        await asyncio.wait_for(shutdown.forced(), 5)
        assert shutdown.status is ExitStatus.FAULT
        assert shutdown.is_requested

    asyncio.run(scenario())
