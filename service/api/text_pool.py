"""Runs tokenizing and templates: at once when short, on a small thread pool when they would hold up the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

_INLINE_CHARACTERS = 4096
"""About 2 ms of byte-level BPE; a thread hop costs 0.1 ms and more under load."""


class TextPool:
    """Owned by the app; `close` it when the app ends."""

    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="headrace-text")

    async def run(self, num_characters: int, work: Callable[[], Result]) -> Result:
        """The result of `work`, which handles about `num_characters`."""
        if num_characters <= _INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
