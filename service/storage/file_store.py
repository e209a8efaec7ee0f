"""Files that clients upload or jobs produce: rows of a table, and contents in a folder."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from service.errors import InvalidRequest, NotFound, StorageUnavailable
from service.storage.data_folder import sync_folder
from service.storage.database import Connection, Database
from service.storage.faults import StorageFaults
from service.storage.file_table import (
    StoredFile,
    all_files,
    delete_file,
    expired_files,
    find_file,
    insert_file,
    list_files,
)
from service.storage.listing import Page, PageQuery
from service.storage.storage_budget import StorageBudget
from service.storage.upload import Upload

_ID_BYTES = 12
_MOST_DROPPED = 100

T = TypeVar("T")


def new_file_id() -> str:
    return f"file-{secrets.token_hex(_ID_BYTES)}"


class FileStore:
    """Event loop. Contents are written under a temporary name, synced and renamed before their row is inserted; a row
    is deleted before its contents. So whenever the process ends, a file is whole or absent; leftovers are removed at
    the first use. An expired file is gone for everybody, unless it is held.

    folder: of the contents. Every method raises StorageUnavailable.
    """

    def __init__(self, database: Database, folder: Path, budget: StorageBudget, faults: StorageFaults) -> None:
        self._database = database
        self._folder = folder
        self._budget = budget
        self._faults = faults
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-files")
        self._held = Counter[str]()
        self._opening = asyncio.Lock()
        self._is_open = False
        self._is_closed = False

    def path_of(self, file: StoredFile) -> Path:
        """The path of its contents, to be read."""
        return self._folder / file.file_id

    async def upload(self, client: str, num_bytes: int = 0) -> Upload:
        """A new file to be written; the caller commits or discards it. num_bytes: its known size; StorageFull if that
        does not fit."""
        await self._open()
        await self._drop_expired()
        self._budget.check_files()
        self._budget.check_room(num_bytes)
        file = StoredFile(new_file_id(), client, "", "", 0, int(time.time()))
        return Upload(file, self.path_of(file), self._budget, self.in_thread, self._insert)

    async def add(self, client: str, purpose: str, filename: str, content: bytes) -> StoredFile:
        """A new file with this content. StorageFull if it does not fit."""
        upload = await self.upload(client, len(content))
        try:
            await upload.write(content)
            return await upload.commit(purpose, filename)
        finally:
            await upload.discard()

    async def adopt(self, path: Path, file: StoredFile) -> None:
        """Make a file of contents that a job has written and synced elsewhere in the data directory, and has taken from
        the budget. May be repeated after an interruption, also by the end of the process."""
        await self._open()

        def insert(connection: Connection) -> bool:
            is_new = find_file(connection, file.file_id, file.client) is None
            if is_new:
                insert_file(connection, file)
            return is_new

        def move() -> None:
            if path.exists():
                path.rename(self.path_of(file))
                sync_folder(self._folder)

        if await self._database.run(insert):
            self._budget.num_files += 1
        else:
            self._budget.give_back(file.num_bytes)  # it was counted when the table was read
        await self.in_thread(move)

    async def find(self, file_id: str, client: str) -> StoredFile | None:
        """As `get`, but returns None if there is none."""
        await self._open()
        file = await self._database.run(lambda connection: find_file(connection, file_id, client))
        return None if file is None or self._is_expired(file) else file

    async def get(self, file_id: str, client: str) -> StoredFile:
        """NotFound if there is none, or if it belongs to another client."""
        file = await self.find(file_id, client)
        if file is None:
            raise NotFound(f"No such File object: {file_id[:64]}", param="id")
        return file

    async def hold(self, file_id: str, client: str) -> StoredFile:
        """As `get`; the file is also kept until `release`, which must be called as often."""
        self._held[file_id] += 1
        try:
            return await self.get(file_id, client)
        except BaseException:
            self.release(file_id)
            raise

    def release(self, file_id: str) -> None:
        self._held[file_id] -= 1
        assert self._held[file_id] >= 0, "it was released more often than held"
        if not self._held[file_id]:
            del self._held[file_id]

    async def list(self, client: str, purpose: str | None, query: PageQuery) -> Page[StoredFile]:
        """InvalidRequest if no file has the id `after`."""
        await self._open()
        await self._drop_expired()
        page = await self._database.run(lambda connection: list_files(connection, client, purpose, query))
        if page is None:
            raise InvalidRequest("after must be the id of a file of yours.", param="after")
        return page

    async def delete(self, file_id: str, client: str) -> None:
        """As `get`; InvalidRequest while it is held."""
        file = await self.get(file_id, client)
        if file_id in self._held:
            raise InvalidRequest("This file is in use by a job that has not ended.", param="id", code="file_in_use")
        await self._delete(file)

    def close(self) -> None:
        """Calls that were made may still be done; later ones fail."""
        self._is_closed = True
        self._thread.shutdown(wait=False)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """The result of work on the contents of files. Works run one at a time, in the order of the calls, even if
        nobody waits for them any more. Raises StorageFull, StorageUnavailable."""

        def translated() -> T:
            with self._faults.translated():
                return work()

        if self._is_closed:
            raise StorageUnavailable("The server is shutting down.")
        return await asyncio.get_running_loop().run_in_executor(self._thread, translated)

    async def _open(self) -> None:
        """Once: removes what an earlier run has left unfinished, and counts the rest."""
        if self._is_open:
            return
        async with self._opening:
            if not self._is_open:
                files = await self._database.run(all_files)
                await self.in_thread(lambda: self._sweep(files))
                self._budget.note(sum(files.values()))
                self._budget.num_files = len(files)
                self._is_open = True

    def _sweep(self, files: dict[str, int]) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for content in self._folder.iterdir():
            if content.name not in files:
                content.unlink(missing_ok=True)

    async def _insert(self, file: StoredFile) -> None:
        await self._database.run(lambda connection: insert_file(connection, file))
        self._budget.num_files += 1

    def _is_expired(self, file: StoredFile) -> bool:
        return file.expires_at is not None and file.expires_at <= time.time() and file.file_id not in self._held

    async def _drop_expired(self) -> None:
        now_s, held = int(time.time()), frozenset(self._held)
        expired = await self._database.run(lambda connection: expired_files(connection, now_s, held))
        for file in expired[:_MOST_DROPPED]:  # a later call drops the rest
            await self._delete(file)

    async def _delete(self, file: StoredFile) -> None:
        if await self._database.run(lambda connection: delete_file(connection, file.file_id)):
            self._budget.give_back(file.num_bytes)
            self._budget.num_files -= 1
            await self.in_thread(lambda: self.path_of(file).unlink(missing_ok=True))
