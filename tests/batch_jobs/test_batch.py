from __future__ import annotations

from service.batch_jobs.batch import Batch, BatchStatus, InputError


def test_what_is_stored_is_read_back() -> None:
    batch = Batch("batch_1", "ann", "/v1/completions", "file-1", "24h", 1, 2, "file-2", None, 3600, {"a": "b"})
    batch = batch.reaching(BatchStatus.IN_PROGRESS, 5, num_lines=3).reaching(BatchStatus.IN_PROGRESS, 6)
    assert batch.reached_at == {"in_progress": 5}, "since when it first was"
    batch = batch.reaching(BatchStatus.FAILED, 7, errors=(InputError("code", "message", 3, "body"),))
    assert Batch.from_json(batch.to_json()) == batch
    assert batch.is_over


def test_lines_are_left_until_they_have_an_answer() -> None:
    batch = Batch("batch_1", "ann", "/v1/completions", "file-1", "24h", 1, 2, None, None)
    assert batch.num_lines_left == 0, "not counted yet"
    batch = batch.reaching(BatchStatus.IN_PROGRESS, 5, num_lines=7)
    assert batch.num_lines_left == 7
    assert batch.reaching(batch.status, 6, num_completed=4, num_failed=1).num_lines_left == 2
