from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from service.errors import StorageFull, StorageUnavailable
from service.storage import database as database_module
from service.storage.data_folder import DataFolder
from service.storage.database import FILE_NAME, Connection, Database, Schema
from service.storage.faults import StorageFaults

WORDS = Schema("words", ("CREATE TABLE words (word TEXT PRIMARY KEY) STRICT",))
WORDS_2 = Schema(
    "words", (*WORDS.versions, "ALTER TABLE words ADD COLUMN meaning TEXT; UPDATE words SET meaning = 'x'")
)


def add(word: str) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        connection.execute("INSERT INTO words (word) VALUES (?)", (word,))

    return work


def words(connection: Connection) -> list[str]:
    return [row["word"] for row in connection.execute("SELECT word FROM words ORDER BY word")]


def with_database(folder: Path, use: Callable[[Database], Coroutine[Any, Any, Any]], schema: Schema = WORDS) -> Any:
    async def main() -> Any:
        database = Database(DataFolder(folder), (schema,), StorageFaults())
        try:
            return await use(database)
        finally:
            await database.close()

    return asyncio.run(main())


def test_nothing_is_made_before_the_first_use(tmp_path: Path) -> None:
    async def use(database: Database) -> None:
        assert not database.exists
        assert not (tmp_path / "new").exists()
        await database.run(add("a"))
        assert database.exists

    with_database(tmp_path / "new", use)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_what_was_done_stays_and_what_failed_left_nothing(tmp_path: Path) -> None:
    def two_of_which_one_is_there(connection: Connection) -> None:
        add("b")(connection)
        add("a")(connection)

    async def use(database: Database) -> None:
        await database.run(add("a"))
        with pytest.raises(sqlite3.IntegrityError):
            await database.run(two_of_which_one_is_there)
        assert await database.run(words) == ["a"]

    with_database(tmp_path, use)
    assert with_database(tmp_path, lambda database: database.run(words)) == ["a"]


def test_tables_of_an_older_version_are_brought_up_to_date(tmp_path: Path) -> None:
    with_database(tmp_path, lambda database: database.run(add("a")))

    def meaning(connection: Connection) -> str:
        return str(connection.execute("SELECT meaning FROM words").fetchone()[0])

    for _ in range(2):
        assert with_database(tmp_path, lambda database: database.run(meaning), WORDS_2) == "x"
    with pytest.raises(StorageUnavailable):
        with_database(tmp_path, lambda database: database.run(words))  # by a server that is older than they are


def test_an_upgrade_that_fails_is_done_whole_the_next_time(tmp_path: Path) -> None:
    broken = Schema("words", (*WORDS.versions, "ALTER TABLE words ADD COLUMN meaning TEXT; UPDATE nothing SET a = 1"))
    with_database(tmp_path, lambda database: database.run(add("a")))
    with pytest.raises(sqlite3.OperationalError):
        with_database(tmp_path, lambda database: database.run(words), broken)
    assert with_database(tmp_path, lambda database: database.run(words), WORDS_2) == ["a"]


def test_one_server_at_a_time_has_the_folder(tmp_path: Path) -> None:
    async def use(first: Database) -> None:
        await first.run(add("a"))
        second = Database(DataFolder(tmp_path), (WORDS,), StorageFaults())
        with pytest.raises(StorageUnavailable, match="Another server"):
            await second.run(words)
        await first.close()
        assert await second.run(words) == ["a"]
        await second.close()

    with_database(tmp_path, use)


def test_a_file_that_is_no_database_is_an_error_until_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database at all" * 1000)

    async def use(database: Database) -> None:
        for _ in range(2):
            with pytest.raises(StorageUnavailable) as refused:
                await database.run(words)
            assert str(tmp_path) not in refused.value.message
        (tmp_path / FILE_NAME).unlink()
        assert await database.run(words) == []

    with_database(tmp_path, use)


def test_a_database_that_is_damaged_while_it_is_open_is_an_error_and_then_looked_at_anew(tmp_path: Path) -> None:
    async def use(database: Database) -> None:
        await database.run(lambda connection: [add(f"{number:0500}")(connection) for number in range(200)])
        await database.run(lambda connection: connection.execute("PRAGMA wal_autocheckpoint").fetchall())
        await database.close()
        size = (tmp_path / FILE_NAME).stat().st_size
        with open(tmp_path / FILE_NAME, "r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))

    with_database(tmp_path, use)
    with pytest.raises(StorageUnavailable):
        with_database(tmp_path, lambda database: database.run(words))


def test_a_place_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageUnavailable):
        with_database(tmp_path / "file" / "folder", lambda database: database.run(words))


def test_a_full_disk_fails_what_needs_room_and_nothing_else(tmp_path: Path) -> None:
    """SQLite's own limit stands for the disk's: the same code comes of both."""

    def fill(connection: Connection) -> None:
        num_pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {num_pages}")
        for number in range(10_000):
            add(f"{number:01000}")(connection)

    async def use(database: Database) -> None:
        await database.run(add("a"))
        with pytest.raises(StorageFull):
            await database.run(fill)
        assert await database.run(words) == ["a"]
        await database.run(add("b"))

    with_database(tmp_path, use)


def test_a_database_that_somebody_locks_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "_BUSY_TIMEOUT_S", 0.01)

    async def use(database: Database) -> None:
        await database.run(add("a"))
        other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageUnavailable, match="busy"):
            await database.run(add("b"))
        other.execute("ROLLBACK")
        other.close()
        await database.run(add("b"))

    with_database(tmp_path, use)


def test_after_its_end_it_takes_nothing_more(tmp_path: Path) -> None:
    async def use(database: Database) -> None:
        await database.close()
        with pytest.raises(StorageUnavailable):
            await database.run(words)

    with_database(tmp_path, use)
    assert not tmp_path.joinpath(FILE_NAME).exists()
