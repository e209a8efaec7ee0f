from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from service.batch_jobs import batch_table
from service.batch_jobs.batch import Batch, BatchStatus
from service.batch_jobs.batch_table import BATCHES, insert_batch, list_batches, num_unfinished, unfinished_batches
from service.storage.listing import PageQuery

BATCH = Batch("batch_0", "ann", "/v1/completions", "file-1", "24h", 1, 2, "file-2", "file-3")


def test_of_many_the_oldest_that_are_over_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_table, "MOST_KEPT", 3)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.executescript(BATCHES.versions[0])
    for number in range(8):
        status = BatchStatus.IN_PROGRESS if number == 1 else BatchStatus.COMPLETED
        insert_batch(connection, replace(BATCH, batch_id=f"batch_{number}", status=status))
    page = list_batches(connection, "ann", PageQuery(None, 100, True))
    assert page is not None
    assert [batch.batch_id for batch in page.items] == ["batch_1", "batch_4", "batch_5", "batch_6", "batch_7"]
    assert [batch.batch_id for batch in unfinished_batches(connection)] == ["batch_1"]
    assert num_unfinished(connection, "ann") == 1
    connection.close()
