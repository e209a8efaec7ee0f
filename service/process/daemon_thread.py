"""Long blocking work beside an event loop that must not delay the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(function: Callable[[], T], name: str) -> T:
    """The function's result, or its exception. If cancelled, the thread goes on alone and its result is dropped.

    Unlike a pool's, the thread ends with the process, whatever it is doing.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not future.done():
            set_outcome()

    def tell(set_outcome: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, set_outcome)

    def work() -> None:
        try:
            result = function()
        except BaseException as fault:
            tell(partial(future.set_exception, fault))
        else:
            tell(partial(future.set_result, result))

    threading.Thread(target=work, name=name, daemon=True).start()
    return await future
