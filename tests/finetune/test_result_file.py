"""tests/finetune/test_job_training.py has what is in it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from service.finetune.job import JobSpec
from service.finetune.job_table import JOBS
from service.finetune.result_file import add_result_file
from service.storage.listing import PageQuery
from service.storage.storage import Storage
from tests.finetune.job_scene import CLIENT, JobScene


def test_where_there_is_no_room_for_it_the_job_goes_on_without(tmp_path: Path):
    async def scene() -> None:
        made = JobScene(Storage(tmp_path, 1, (JOBS,)))
        job = await made.jobs.create(CLIENT, JobSpec("base", "file-1"))
        assert await add_result_file(made.jobs, made.storage.files, job) == ()
        last = (await made.jobs.events(job, PageQuery(None, 1, False))).items[0]
        assert last.level == "warn"
        await made.storage.close()

    asyncio.run(scene())
