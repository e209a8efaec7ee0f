"""Database table of batches."""

from __future__ import annotations

from service.batch_jobs.batch import Batch
from service.storage.database import Connection, Schema
from service.storage.listing import Page, PageQuery, take_page

BATCHES = Schema(
    "batches",
    (
        """
        CREATE TABLE batches (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            batch_id TEXT NOT NULL UNIQUE,
            client TEXT NOT NULL,
            is_over INTEGER NOT NULL,
            facts TEXT NOT NULL
        ) STRICT;
        CREATE INDEX batches_of_client ON batches (client, number);
        CREATE INDEX batches_not_over ON batches (number) WHERE NOT is_over;
        """,
    ),
)


MOST_KEPT = 10_000
"""Batches; beyond this, the oldest ended ones are forgotten."""


def insert_batch(connection: Connection, batch: Batch) -> None:
    connection.execute(
        "DELETE FROM batches WHERE is_over AND number <= (SELECT max(number) FROM batches) - ?", (MOST_KEPT,)
    )
    connection.execute(
        "INSERT INTO batches (batch_id, client, is_over, facts) VALUES (?, ?, ?, ?)",
        (batch.batch_id, batch.client, batch.is_over, batch.to_json().decode()),
    )


def update_batch(connection: Connection, batch: Batch) -> None:
    connection.execute(
        "UPDATE batches SET is_over = ?, facts = ? WHERE batch_id = ?",
        (batch.is_over, batch.to_json().decode(), batch.batch_id),
    )


def find_batch(connection: Connection, batch_id: str, client: str) -> Batch | None:
    """None if there is none, or if it belongs to another client."""
    row = connection.execute(
        "SELECT facts FROM batches WHERE batch_id = ? AND client = ?", (batch_id, client)
    ).fetchone()
    return None if row is None else Batch.from_json(row["facts"])


def list_batches(connection: Connection, client: str, query: PageQuery) -> Page[Batch] | None:
    """A page of the client's batches. None if there is no batch with the id `after`."""
    page = take_page(connection, "batches", "batch_id", "facts", ("client = ?", (client,)), query)
    return None if page is None else Page([Batch.from_json(row["facts"]) for row in page.items], page.has_more)


def unfinished_batches(connection: Connection) -> list[Batch]:
    """In order of creation."""
    rows = connection.execute("SELECT facts FROM batches WHERE NOT is_over ORDER BY number")
    return [Batch.from_json(row["facts"]) for row in rows]


def num_unfinished(connection: Connection, client: str) -> int:
    """Number of this client's unfinished batches."""
    row = connection.execute("SELECT count(*) FROM batches WHERE NOT is_over AND client = ?", (client,)).fetchone()
    return int(row[0])
