from __future__ import annotations

import asyncio
import threading

import pytest

from service.process.daemon_thread import in_daemon_thread


def test_gives_the_functions_result_from_a_daemon_thread():
    thread = asyncio.run(in_daemon_thread(threading.current_thread, "load"))
    assert thread.daemon
    assert thread.name == "load"


def test_raises_what_the_function_raised():
    def fail() -> None:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        asyncio.run(in_daemon_thread(fail, "load"))


@pytest.mark.parametrize("fails", [False, True])
def test_cancelled_it_drops_what_the_thread_still_gives(fails: bool):
    may_end, faults = threading.Event(), list[object]()

    def work() -> None:
        may_end.wait(10)
        if fails:
            raise ValueError

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        task = asyncio.create_task(in_daemon_thread(work, "load"))
        await asyncio.sleep(0)
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "load")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_end.set()
        await asyncio.to_thread(thread.join, 10)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert faults == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_that_outlives_the_loop_ends_quietly(fails: bool, monkeypatch: pytest.MonkeyPatch):
    may_end, threads, faults = threading.Event(), list[threading.Thread](), list[object]()
    monkeypatch.setattr(threading, "excepthook", faults.append)

    def work() -> None:
        threads.append(threading.current_thread())
        may_end.wait(10)
        if fails:
            raise ValueError

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_daemon_thread(work, "load"), 0.05)

    asyncio.run(scenario())
    may_end.set()
    threads[0].join(10)
    assert faults == []
