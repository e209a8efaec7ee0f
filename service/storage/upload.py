"""A file that is being uploaded: written under a temporary name, then renamed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from service.storage.data_folder import sync_folder
from service.storage.file_table import StoredFile
from service.storage.storage_budget import StorageBudget

PART_SUFFIX = ".part"

T = TypeVar("T")


class InThread(Protocol):
    """Runs one work at a time, in the order of the calls, even if nobody waits for it any more."""

    async def __call__(self, work: Callable[[], T]) -> T: ...


class Upload:
    """`commit` makes a file of it; `discard` may be called in any case, and removes what was not committed. One call at
    a time, event loop.

    file: what is known of it beforehand. path: where its contents will be. insert: inserts its row into the table.
    """

    def __init__(
        self,
        file: StoredFile,
        path: Path,
        budget: StorageBudget,
        in_thread: InThread,
        insert: Callable[[StoredFile], Awaitable[None]],
    ) -> None:
        self._file = file
        self._path = path
        self._part = path.with_name(path.name + PART_SUFFIX)
        self._budget = budget
        self._in_thread = in_thread
        self._insert = insert
        self._output: BinaryIO | None = None
        self._num_bytes = 0
        self._is_over = False

    async def write(self, piece: bytes, check: Callable[[bytes], None] | None = None) -> None:
        """Append. check: called with the piece in the same thread; its exceptions are passed on. StorageFull,
        StorageUnavailable."""
        self._budget.take(len(piece))
        self._num_bytes += len(piece)
        await self._in_thread(lambda: self._append(piece, check))

    async def commit(self, purpose: str, filename: str, expires_after_s: int | None = None) -> StoredFile:
        """The file, once it is on the disk. If cancelled, it may still be made."""
        self._is_over = True
        expires_at = None if expires_after_s is None else self._file.created_at + expires_after_s
        file = replace(self._file, num_bytes=self._num_bytes, purpose=purpose, filename=filename, expires_at=expires_at)
        return await asyncio.shield(self._commit(file))

    async def discard(self) -> None:
        """Idempotent."""
        if not self._is_over:
            self._is_over = True
            await asyncio.shield(self._drop())

    def _append(self, piece: bytes, check: Callable[[bytes], None] | None) -> None:
        if check is not None:
            check(piece)
        self._opened().write(piece)

    def _opened(self) -> BinaryIO:
        if self._output is None:
            self._output = open(self._part, "xb")  # noqa: SIM115 - closed by _put_in_place or _remove
        return self._output

    async def _commit(self, file: StoredFile) -> StoredFile:
        try:
            await self._in_thread(self._put_in_place)
            await self._insert(file)
        except BaseException:
            await self._drop()
            raise
        return file

    def _put_in_place(self) -> None:
        with self._opened() as output:
            output.flush()
            os.fsync(output.fileno())
        self._part.rename(self._path)
        sync_folder(self._path.parent)

    async def _drop(self) -> None:
        self._budget.give_back(self._num_bytes)
        await self._in_thread(self._remove)

    def _remove(self) -> None:
        if self._output is not None:
            with suppress(OSError):  # buffered bytes that cannot be written: nobody wants them
                self._output.close()
        for path in (self._part, self._path):
            path.unlink(missing_ok=True)
