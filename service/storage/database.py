"""One SQLite file for all tables, with a thread of its own (see https://www.sqlite.org/wal.html)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, TypeVar

from service.errors import StorageUnavailable
from service.storage.data_folder import DataFolder
from service.storage.faults import StorageFaults

FILE_NAME = "headrace.sqlite"
_BUSY_TIMEOUT_S = 2.0
_CLOSE_TIMEOUT_S = 5.0
_VERSIONS = "CREATE TABLE IF NOT EXISTS schema_versions (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT"

T = TypeVar("T")
Connection = sqlite3.Connection


class Schema(NamedTuple):
    """The tables of one module. versions: SQL scripts; number i leads from version i to i + 1. A released script is
    never changed; new ones are appended."""

    name: str
    versions: tuple[str, ...]


class Database:
    """Opened by the first `run`, and opened again by the next one after a failure. Event loop.

    A commit is on the disk when `run` returns. schemas: of all tables; their names differ.
    """

    def __init__(self, folder: DataFolder, schemas: Sequence[Schema], faults: StorageFaults) -> None:
        self._folder = folder
        self._schemas = schemas
        self._faults = faults
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-database")
        self._connection: Connection | None = None
        self._is_closed = False

    @property
    def exists(self) -> bool:
        """Whether there is one from an earlier run of the server."""
        with suppress(OSError):
            return (self._folder.path / FILE_NAME).exists()
        return False

    async def run(self, work: Callable[[Connection], T]) -> T:
        """The result of `work`, run in the database's thread as one transaction: all of it, or nothing if it raises.

        Raises StorageFull, StorageUnavailable, and whatever `work` raises. `work` must be quick, as others wait for it.
        If cancelled, it may still be done.
        """
        if self._is_closed:
            raise StorageUnavailable("The server is shutting down.")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    async def close(self) -> None:
        """Ends after the calls that were made. Idempotent. Does not wait for a disk that does not answer."""
        if self._is_closed:
            return
        self._is_closed = True
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)
        await asyncio.wait((closing,), timeout=_CLOSE_TIMEOUT_S)

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self._faults.translated():
            connection = self._opened()
            try:
                connection.execute("BEGIN IMMEDIATE")
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException as fault:
                self._roll_back(connection, fault)
                raise
        return result

    def _roll_back(self, connection: Connection, fault: BaseException) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()
        else:
            if isinstance(fault, sqlite3.DatabaseError) and not isinstance(fault, sqlite3.IntegrityError):
                self._disconnect()  # the file may be gone: the next call opens it again

    def _opened(self) -> Connection:
        if self._connection is None:
            try:
                self._folder.take()
                self._connection = self._open()
            except BaseException:
                self._folder.give_back()
                raise
        return self._connection

    def _open(self) -> Connection:
        connection = sqlite3.connect(
            self._folder.path / FILE_NAME,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
        )
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(_VERSIONS)
            for schema in self._schemas:
                self._upgrade(connection, schema)
        except BaseException:
            connection.close()
            raise
        return connection

    def _upgrade(self, connection: Connection, schema: Schema) -> None:
        row = connection.execute("SELECT version FROM schema_versions WHERE name = ?", (schema.name,)).fetchone()
        version = 0 if row is None else row["version"]
        if version > len(schema.versions):
            raise self._faults.unusable(f"its {schema.name} are of a newer Headrace, version {version}")
        for number, script in enumerate(schema.versions[version:], version + 1):
            note = f"INSERT OR REPLACE INTO schema_versions VALUES ('{schema.name}', {number})"
            try:
                connection.executescript(f"BEGIN IMMEDIATE;\n{script};\n{note};\nCOMMIT;")
            except sqlite3.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _close(self) -> None:
        self._disconnect()
        self._folder.give_back()
