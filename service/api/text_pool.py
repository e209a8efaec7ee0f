"""Runs tokenizing and templates: inline when short, on threads when they would hold up the event loop.

There are separate threads for three kinds of work, so that none waits for another: answers and bodies, prompts, and
prompts so long that they take seconds. The characters of waiting prompts are bounded; a prompt beyond the bound is
refused before any work on it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.types import Receive

from service.api.disconnect import ClientGone, run_unless_disconnected
from service.api.freed_memory import FreedMemory
from service.core.host_times import HostTimes
from service.errors import Overloaded

Result = TypeVar("Result")

_INLINE_CHARACTERS = 4096
"""About 2 ms of byte-level BPE; a thread hop costs 0.1 ms and more under load."""
_LARGE_CHARACTERS = 128 * 1024
"""Larger work leaves enough freed memory to return it to the system."""
_LONG_CHARACTERS = 1024 * 1024
_MAX_WAITING_CHARACTERS = 16 * 1024 * 1024
"""For each kind of prompts: two bodies of the largest size, which take some seconds."""
_RETRY_AFTER_S = 5.0


class TextPool:
    """Owned by the app; `close` it when the app ends."""

    def __init__(self, num_threads: int, times: HostTimes, max_waiting: int = _MAX_WAITING_CHARACTERS) -> None:
        self._times = times
        self._answers = ThreadPoolExecutor(num_threads, thread_name_prefix="headrace-text")
        self._freed = FreedMemory(self._answers)
        self._prompts = _Lane(num_threads, "headrace-prompt", max_waiting)
        self._long_prompts = _Lane(1, "headrace-long-prompt", max_waiting)

    async def run(self, num_characters: int, work: Callable[[], Result]) -> Result:
        """The result of `work`, which handles about `num_characters`. Never refused, as it is for bodies and
        answers."""
        if num_characters <= _INLINE_CHARACTERS:
            return self._note(_timed(work))
        try:
            return self._note(await asyncio.get_running_loop().run_in_executor(self._answers, _timed, work))
        finally:
            self.note_large_work(num_characters)

    async def run_prompt(
        self, receive: Receive, num_characters: int, work: Callable[[Callable[[], None]], Result]
    ) -> Result:
        """As `run`, for a prompt. Raises Overloaded if too many characters of prompts are waiting, ClientGone if the
        client disconnects; work that has not begun by then is dropped. `work` is given a function that raises
        ClientGone in it; long work calls it now and then. receive: of a request whose body has been read."""
        if num_characters <= _INLINE_CHARACTERS:
            return self._note(_timed(lambda: work(_never_cancelled)))
        lane = self._prompts if num_characters <= _LONG_CHARACTERS else self._long_prompts
        try:
            return self._note(await run_unless_disconnected(receive, lane.run(num_characters, work)))
        finally:
            self.note_large_work(num_characters)

    def close(self) -> None:
        self._freed.close()
        self._prompts.close()
        self._long_prompts.close()
        self._answers.shutdown(wait=False, cancel_futures=True)

    def note_large_work(self, num_characters: int) -> None:
        """Large work is done, here or elsewhere: its memory is returned to the system soon."""
        if num_characters > _LARGE_CHARACTERS:
            self._freed.trim_soon()

    def _note(self, timed: tuple[Result, float]) -> Result:
        result, seconds = timed
        self._times.tokenize += seconds
        return result


class _Lane:
    """Some threads, and how many characters are waiting for them. Event-loop thread."""

    def __init__(self, num_threads: int, name: str, max_waiting: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._max_waiting = max_waiting
        self._num_waiting = 0

    async def run(self, num_characters: int, work: Callable[[Callable[[], None]], Result]) -> tuple[Result, float]:
        if self._num_waiting and self._num_waiting + num_characters > self._max_waiting:
            raise Overloaded(
                f"Prompts of {self._num_waiting} characters are waiting to be tokenized; the limit is "
                f"{self._max_waiting}. Try again later.",
                retry_after_s=_RETRY_AFTER_S,
            )
        is_over = threading.Event()

        def check_cancelled() -> None:
            if is_over.is_set():
                raise ClientGone

        future = asyncio.get_running_loop().run_in_executor(self._threads, _timed, lambda: work(check_cancelled))
        self._num_waiting += num_characters
        try:
            return await future
        finally:
            is_over.set()
            self._num_waiting -= num_characters
            del future  # an exception refers to this frame by its traceback: no reference cycle

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _never_cancelled() -> None:
    """For work that is done inline: the client cannot have disconnected meanwhile."""


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    began_s = time.perf_counter()
    return work(), time.perf_counter() - began_s
