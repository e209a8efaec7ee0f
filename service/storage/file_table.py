"""The table of files: everything about them but their contents."""

from __future__ import annotations

import sqlite3
from collections.abc import Set
from dataclasses import dataclass

from service.storage.database import Connection, Schema
from service.storage.listing import Page, PageQuery, take_page

FILES = Schema(
    "files",
    (
        """
        CREATE TABLE files (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            file_id TEXT NOT NULL UNIQUE,
            client TEXT NOT NULL,
            purpose TEXT NOT NULL,
            filename TEXT NOT NULL,
            num_bytes INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER
        ) STRICT;
        CREATE INDEX files_of_client ON files (client, number);
        CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
        """,
    ),
)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """client: name of the API key that it belongs to. created_at, expires_at (None: never): Unix seconds."""

    file_id: str
    client: str
    purpose: str
    filename: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None


_COLUMNS = "file_id, client, purpose, filename, num_bytes, created_at, expires_at"


def insert_file(connection: Connection, file: StoredFile) -> None:
    values = (
        file.file_id,
        file.client,
        file.purpose,
        file.filename,
        file.num_bytes,
        file.created_at,
        file.expires_at,
    )
    connection.execute(f"INSERT INTO files ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def find_file(connection: Connection, file_id: str, client: str) -> StoredFile | None:
    """None if there is none, or if it belongs to another client."""
    found = connection.execute(
        f"SELECT {_COLUMNS} FROM files WHERE file_id = ? AND client = ?", (file_id, client)
    ).fetchone()
    return None if found is None else _file(found)


def delete_file(connection: Connection, file_id: str) -> bool:
    """Returns whether there was one."""
    return connection.execute("DELETE FROM files WHERE file_id = ?", (file_id,)).rowcount > 0


def list_files(connection: Connection, client: str, purpose: str | None, query: PageQuery) -> Page[StoredFile] | None:
    """None if there is no file with the id `after`."""
    restriction = ("client = ?", (client,)) if purpose is None else ("client = ? AND purpose = ?", (client, purpose))
    page = take_page(connection, "files", "file_id", _COLUMNS, restriction, query)
    return None if page is None else Page([_file(row) for row in page.items], page.has_more)


def expired_files(connection: Connection, now_s: int, held: Set[str]) -> list[StoredFile]:
    """The expired files without those in `held`."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM files WHERE expires_at <= ?", (now_s,))
    return [file for file in map(_file, rows) if file.file_id not in held]


def all_files(connection: Connection) -> dict[str, int]:
    """The bytes of each, by id."""
    return {row["file_id"]: row["num_bytes"] for row in connection.execute("SELECT file_id, num_bytes FROM files")}


def _file(row: sqlite3.Row) -> StoredFile:
    return StoredFile(*row)
