"""Runs fine-tuning jobs: reads their files and trains them, one at a time, oldest first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from service.core.training import TrainingInterrupted
from service.errors import StorageFull, StorageUnavailable
from service.finetune.job import IllegalTransition, Job, JobEvent, JobStatus, ValidatedData
from service.finetune.job_faults import JobFault, job_error
from service.finetune.job_table import jobs_in
from service.finetune.job_training import JobStopped, JobTools, JobTraining
from service.finetune.jobs import job_event

_logger = logging.getLogger(__name__)

_TRY_AGAIN_S = 5.0
_ENDS_WITHIN_S = 5.0

T = TypeVar("T")


class JobRunner:
    """Event loop. The files of one job may be read while another job is trained."""

    def __init__(self, tools: JobTools) -> None:
        self._tools = tools
        self._jobs = tools.jobs
        self._held: dict[str, list[str]] = {}
        self._has_news = {status: asyncio.Event() for status in (JobStatus.VALIDATING_FILES, JobStatus.QUEUED)}
        self._training: JobTraining | None = None
        self._is_idle = asyncio.Event()
        self._is_closing = False
        self._validated, self._is_unwanted = "", False
        self._task: asyncio.Task[None] | None = None
        self._jobs.listen(self._note)

    def start(self) -> None:
        """Start, and continue with what an earlier process has left."""
        self._task = asyncio.create_task(self._work_off())

    async def close(self) -> None:
        """Stop what runs; it continues when the server starts again. Followers of jobs get no more events."""
        self._is_closing = True
        self._jobs.close()
        if self._training is not None:
            self._training.stop()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_idle.wait(), _ENDS_WITHIN_S)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work_off(self) -> None:
        if self._jobs.is_anything_stored:
            await self._recover()
        else:  # the data directory is created only when there is a job
            await self._has_news[JobStatus.VALIDATING_FILES].wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._each(JobStatus.VALIDATING_FILES, self._validate))
            group.create_task(self._each(JobStatus.QUEUED, self._train))

    async def _recover(self) -> None:
        await _until_possible(self._tools.models.recover)
        await _until_possible(self._jobs.recount)
        unfinished = [status for status in JobStatus if not status.is_final]
        jobs = await self._jobs_in(unfinished)
        folders = self._tools.folders
        folders.adopt(await self._tools.in_thread(partial(folders.sweep, [job.job_id for job in jobs])))
        for job in jobs:
            with suppress(JobFault):  # the job itself will fail by it
                await _until_possible(partial(self._hold_files, job))
            if job.status is JobStatus.RUNNING:
                message = "The server was restarted; the job continues from its last checkpoint"
                await self._change(job, Job.interrupted, job_event(message, "warn"))

    async def _each(self, status: JobStatus, carry_on: Callable[[Job], Awaitable[None]]) -> None:
        """Handle the jobs of this status one after the other."""
        news = self._has_news[status]
        while not self._is_closing:
            news.clear()
            try:
                if waiting := await self._jobs_in([status]):
                    await carry_on(waiting[0])
                    continue
            except Exception:  # a bug must not stop all other jobs
                _logger.exception("a fine-tuning job could not be carried on")
                await asyncio.sleep(_TRY_AGAIN_S)
                continue
            await news.wait()

    async def _jobs_in(self, statuses: Sequence[JobStatus]) -> list[Job]:
        return await _until_possible(partial(self._jobs.read, lambda connection: jobs_in(connection, statuses)))

    def _note(self, job: Job) -> None:
        """A job is new or has changed."""
        if self._training is not None and self._training.job_id == job.job_id:
            self._training.note(job)
        elif job.status.is_final:
            self._tools.folders.forget(job.job_id)
        if job.job_id == self._validated and job.status is not JobStatus.VALIDATING_FILES:
            self._is_unwanted = True
        if job.status.is_final:
            self._release_files(job)
        if job.status in self._has_news:
            self._has_news[job.status].set()

    async def _hold_files(self, job: Job) -> None:
        """Keep the job's files until it ends. Raises JobFault if one does not exist any more."""
        if job.job_id not in self._held:
            self._held[job.job_id] = held = []
            for param, file_id in job.spec.files().items():
                await self._tools.file(job, param, self._tools.files.hold)
                held.append(file_id)

    def _release_files(self, job: Job) -> None:
        for file_id in self._held.pop(job.job_id, ()):
            self._tools.files.release(file_id)

    async def _validate(self, job: Job) -> None:
        self._validated, self._is_unwanted = job.job_id, False
        try:
            await self._hold_files(job)
            paths = await self._tools.paths(job)
            work = partial(self._tools.work.validate, job, *paths, self._check_wanted)
            data = await self._tools.in_thread(work)
        except JobStopped:
            return
        except Exception as fault:
            await self._fail(job, fault)
            return
        event = job_event(f"Files validated, moving job to queued state: {_found(data)}")
        await self._change(job, lambda now: now.validated(data), event)

    def _check_wanted(self) -> None:
        """Raise JobStopped if the job whose files are being read is no longer wanted. Any thread."""
        if self._is_unwanted or self._is_closing:
            raise JobStopped

    async def _train(self, job: Job) -> None:
        started = await self._change(job, Job.started, job_event("Fine-tuning job started"))
        if started is None:
            return
        self._training = JobTraining(self._tools, started)
        self._is_idle.clear()
        try:
            await self._training.complete()
        except TrainingInterrupted:
            self._is_closing = True
        except Exception as fault:
            await self._fail(job, fault)
        finally:
            self._training = None
            self._is_idle.set()
        await _until_possible(partial(self._tidy, job))

    async def _tidy(self, job: Job) -> None:
        now = await self._jobs.get(job.job_id, job.client)
        if now.status.is_final:
            self._tools.folders.forget(job.job_id)

    async def _fail(self, job: Job, fault: Exception) -> None:
        error = job_error(fault)
        event = job_event(f"The job failed: {error.message}", "error")
        await self._change(job, lambda now: now.failed(error, int(time.time())), event)

    async def _change(self, job: Job, change: Callable[[Job], Job], event: JobEvent) -> Job | None:
        """Change the job as soon as the database can be written. None if the job's status does not allow it any more
        (the client was faster)."""
        try:
            return await _until_possible(partial(self._jobs.change, job.job_id, change, [event]))
        except IllegalTransition:
            return None


def _found(data: ValidatedData) -> str:
    found = f"{data.num_examples} examples, {data.num_tokens} tokens, {data.num_steps} steps"
    if data.num_truncated:
        found += f"; {data.num_truncated} examples were cut at {data.hyperparameters.max_length} tokens"
    if data.num_left_out:
        found += f"; {data.num_left_out} examples were left out, since none of the tokens before that is trained"
    return found


async def _until_possible(work: Callable[[], Awaitable[T]]) -> T:
    """Retry while the data directory is unavailable or full."""
    while True:
        try:
            return await work()
        except (StorageFull, StorageUnavailable) as fault:
            _logger.warning("fine-tuning is waiting until the data directory is usable: %s", fault)
            await asyncio.sleep(_TRY_AGAIN_S)
