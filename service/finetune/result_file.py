"""A job's result file: the metrics of its steps."""

from __future__ import annotations

from service.errors import StorageFull
from service.finetune.job import Job, JobEvent
from service.finetune.job_table import events_after
from service.finetune.jobs import FineTuningJobs, job_event
from service.finetune.step_metrics import as_csv
from service.storage.database import Connection
from service.storage.file_store import FileStore

PURPOSE, NAME = "fine-tune-results", "step_metrics.csv"
_AT_ONCE = 500


async def add_result_file(jobs: FineTuningJobs, files: FileStore, job: Job) -> tuple[str, ...]:
    """Write the file and return its id. Empty if there is no room for it, which does not fail the job."""
    rows, last = [], 0

    def more(connection: Connection) -> list[tuple[int, JobEvent]]:
        return events_after(connection, job.job_id, last, _AT_ONCE)

    while found := await jobs.read(more):
        rows += [event.data for _, event in found if event.data is not None]
        last = found[-1][0]
    try:
        file = await files.add(job.client, PURPOSE, NAME, as_csv(rows))
    except StorageFull:
        event = job_event("There was no room for the file of results", "warn")
        await jobs.change(job.job_id, lambda now: now, [event])
        return ()
    return (file.file_id,)
