"""A page of a table's rows, as in OpenAI's lists: a number of rows after the row `after`, newest first or last."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from service.storage.database import Connection

T = TypeVar("T")


class PageQuery(NamedTuple):
    """after: the id of the row before the page; None: the first page."""

    after: str | None
    limit: int
    is_ascending: bool


class Page(NamedTuple, Generic[T]):
    """has_more: whether another page follows."""

    items: Sequence[T]
    has_more: bool


def take_page(
    connection: Connection,
    table: str,
    id_column: str,
    columns: str,
    restriction: tuple[str, Sequence[object]],
    query: PageQuery,
) -> Page[sqlite3.Row] | None:
    """The rows for which `restriction` (SQL, and the values of its question marks) holds, in the order of the column
    `number`. None if `after` is none of them. Everything but `query` is ours, never a client's."""
    condition, arguments = restriction
    bound: list[object] = [*arguments]
    if query.after is not None:
        row = connection.execute(
            f"SELECT number FROM {table} WHERE {id_column} = ? AND {condition}", (query.after, *arguments)
        ).fetchone()
        if row is None:
            return None
        condition += f" AND number {'>' if query.is_ascending else '<'} ?"
        bound.append(row["number"])
    rows = connection.execute(
        f"SELECT {columns} FROM {table} WHERE {condition} ORDER BY number {'ASC' if query.is_ascending else 'DESC'}"
        " LIMIT ?",
        (*bound, query.limit + 1),
    ).fetchall()
    return Page(rows[: query.limit], len(rows) > query.limit)
