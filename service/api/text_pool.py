"""Runs tokenizing and templates: at once when short, on a small thread pool when they would hold up the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from service.core.host_times import HostTimes

Result = TypeVar("Result")

_INLINE_CHARACTERS = 4096
"""About 2 ms of byte-level BPE; a thread hop costs 0.1 ms and more under load."""


class TextPool:
    """Owned by the app; `close` it when the app ends."""

    def __init__(self, num_threads: int, times: HostTimes) -> None:
        self._times = times
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="headrace-text")

    async def run(self, num_characters: int, work: Callable[[], Result]) -> Result:
        """The result of `work`, which handles about `num_characters`."""
        if num_characters <= _INLINE_CHARACTERS:
            result, seconds = _timed(work)
        else:
            result, seconds = await asyncio.get_running_loop().run_in_executor(self._threads, _timed, work)
        self._times.tokenize += seconds
        return result

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    began_s = time.perf_counter()
    return work(), time.perf_counter() - began_s
