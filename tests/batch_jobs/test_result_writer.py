from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.batch_jobs import result_writer
from service.batch_jobs.batch import BatchStatus
from service.batch_jobs.batch_jobs import BatchJobs
from service.batch_jobs.batch_output import BatchOutput
from service.storage.storage import Storage
from tests.batch_jobs.fake_batches import begin, ended, lines, with_jobs


def test_a_defect_in_writing_ends_the_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no line runs, nobody else looks at what became of the write."""

    def broken(output: BatchOutput, results: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(result_writer, "_MOST_UNWRITTEN_BYTES", 0)
    monkeypatch.setattr(BatchOutput, "lines_of", broken)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        batch = await begin(storage, jobs, lines(range(4)))
        assert (await asyncio.wait_for(ended(jobs, batch.batch_id), 5)).status is BatchStatus.FAILED

    with_jobs(tmp_path, use, most_lines=1)
