"""Writes the results of a batch's lines to disk, many at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from service.batch_jobs.batch_output import Answer, BatchOutput, LineResult
from service.core.rare_warning import RareWarning
from service.errors import StorageFull, StorageUnavailable
from service.storage.storage_budget import StorageBudget
from service.storage.upload import InThread

_logger = logging.getLogger(__name__)
_FLUSH_EVERY_S = 0.1
_RETRY_S = 5.0
_MOST_UNWRITTEN_BYTES = 8 * 1024 * 1024


class ResultWriter:
    """Event loop. If the disk is full or fails, it retries until it succeeds: no result is lost, no line is run twice.

    note_written: called with results that are on disk.
    """

    def __init__(
        self,
        output: BatchOutput,
        budget: StorageBudget,
        in_thread: InThread,
        note_written: Callable[[Sequence[LineResult]], None],
    ) -> None:
        self._output = output
        self._budget = budget
        self._in_thread = in_thread
        self._note_written = note_written
        self._unwritten: list[LineResult] = []
        self._num_unwritten_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._warning = RareWarning(_logger, "results of a batch cannot be stored yet: %s (times: %d)")

    def put(self, result: LineResult) -> None:
        """Write the result soon. Raises the fault of an earlier write, if it was not the disk's."""
        self._unwritten.append(result)
        self._num_unwritten_bytes += _size(result)
        if self._num_unwritten_bytes > _MOST_UNWRITTEN_BYTES:
            self._has_room.clear()
        self._check_writing()
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def wait_for_room(self) -> None:
        """Wait until few enough bytes are unwritten to run more lines. Raises as `put`."""
        await self._has_room.wait()
        self._check_writing()

    async def flush(self) -> None:
        """Wait until everything is written. Raises as `put`."""
        if self._writing is not None:
            await asyncio.wait((self._writing,))
            self._writing.result()

    async def close(self, within_s: float) -> None:
        """Write what there is, if that takes no longer than this, and then nothing more. Does not raise."""
        if self._writing is not None:
            await asyncio.wait((self._writing,), timeout=within_s)
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while self._unwritten:
                results, self._unwritten = self._unwritten, []
                answers, errors = await self._in_thread(partial(self._output.lines_of, results))
                while not await self._append(answers, errors):
                    await asyncio.sleep(_RETRY_S)
                self._note_written(results)
                self._num_unwritten_bytes -= sum(map(_size, results))
                if self._num_unwritten_bytes <= _MOST_UNWRITTEN_BYTES:
                    self._has_room.set()
                await asyncio.sleep(_FLUSH_EVERY_S)
        finally:
            self._has_room.set()  # if it failed, whoever waits for room must learn of it

    async def _append(self, answers: bytes, errors: bytes) -> bool:
        """Returns whether it succeeded."""
        num_bytes = len(answers) + len(errors)
        try:
            self._budget.take(num_bytes)
        except StorageFull as fault:
            self._warning.tell(fault)
            return False
        try:
            await self._in_thread(lambda: self._output.append(answers, errors))
        except (StorageFull, StorageUnavailable) as fault:
            self._budget.give_back(num_bytes)
            self._warning.tell(fault)
            return False
        return True

    def _check_writing(self) -> None:
        if self._writing is not None and self._writing.done():
            self._writing.result()
            self._writing = None


def _size(result: LineResult) -> int:
    return len(result.outcome.body) if isinstance(result.outcome, Answer) else 0
