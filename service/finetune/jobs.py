"""All clients' jobs: create and read them, and make every change in the database before it is visible."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar

from service.core.watchers import Watchers
from service.errors import InvalidRequest, NotFound, RateLimited
from service.finetune.job import Job, JobCheckpoint, JobEvent, JobSpec
from service.finetune.job_table import (
    add_events,
    count_jobs,
    count_unfinished,
    events_after,
    find_job,
    forget_oldest,
    insert_job,
    list_checkpoints,
    list_events,
    list_jobs,
    save_job,
)
from service.storage.database import Connection, Database
from service.storage.listing import Page, PageQuery

MAX_UNFINISHED = 100
"""Limit of unfinished jobs per API key."""
MAX_KEPT = 10_000
"""Jobs of all keys; beyond this, the oldest ended ones are forgotten."""

_EVENTS_AT_ONCE = 100
_ID_BYTES = 12

T = TypeVar("T")
Also = Callable[[Connection], None]
"""Further writes in the same transaction."""


class FineTuningJobs:
    """Event loop. Every method raises StorageUnavailable; those that write also raise StorageFull.

    base_weights: digest of the served model. on_counts: called with the number of jobs per status after every change,
    and by `recount`.
    """

    def __init__(
        self,
        database: Database,
        base_weights: str,
        on_counts: Callable[[Mapping[str, int]], None] = lambda counts: None,
    ) -> None:
        self._database = database
        self._base_weights = base_weights
        self._on_counts = on_counts
        self._watchers = Watchers()
        self._listeners: list[Callable[[Job], None]] = []
        self._is_closed = False

    @property
    def is_anything_stored(self) -> bool:
        """Whether an earlier run of the server left a database."""
        return self._database.exists

    def listen(self, on_change: Callable[[Job], None]) -> None:
        """Call `on_change`, on the event loop, with every new or changed job."""
        self._listeners.append(on_change)

    async def create(self, client: str, spec: JobSpec) -> Job:
        """Raises RateLimited if the client has too many unfinished jobs. spec: checked; its files are the client's."""
        now_s = int(time.time())
        job = Job(new_id("ftjob-"), client, now_s, self._base_weights, spec)

        def insert(connection: Connection) -> Job:
            if count_unfinished(connection, client) >= MAX_UNFINISHED:
                raise RateLimited(f"{MAX_UNFINISHED} of your fine-tuning jobs have not ended, which is the limit.")
            insert_job(connection, job)
            events = [
                job_event(f"Created fine-tuning job: {job.job_id}"),
                job_event(f"Validating training file: {spec.training_file}"),
            ]
            add_events(connection, job.job_id, events)
            forget_oldest(connection, MAX_KEPT)
            return job

        return await self._write(insert)

    async def get(self, job_id: str, client: str) -> Job:
        """Raises NotFound if there is none, or if it belongs to another client."""
        job = await self._database.run(lambda connection: find_job(connection, job_id, client))
        if job is None:
            raise NotFound(f"No such fine-tuning job: {job_id[:64]}", param="fine_tuning_job_id")
        return job

    async def list(self, client: str, metadata: Mapping[str, str] | None, query: PageQuery) -> Page[Job]:
        """metadata: as in `list_jobs`."""
        return _found(await self._database.run(lambda connection: list_jobs(connection, client, metadata, query)))

    async def events(self, job: Job, query: PageQuery) -> Page[JobEvent]:
        return _found(await self._database.run(lambda connection: list_events(connection, job.job_id, query)))

    async def checkpoints(self, job: Job, query: PageQuery) -> Page[JobCheckpoint]:
        return _found(await self._database.run(lambda connection: list_checkpoints(connection, job.job_id, query)))

    async def follow(self, job: Job) -> AsyncIterator[JobEvent]:
        """All events of a job, oldest first, as they occur, until the job has ended or `close` was called."""
        last = 0
        with self._watchers.watched(job.job_id) as changed:
            while True:
                changed.clear()
                is_over, found = await self._database.run(partial(_look, job, last))
                for _, event in found:
                    yield event
                last = found[-1][0] if found else last
                if not found and (is_over or self._is_closed):
                    return
                if not found:
                    await changed.wait()

    async def change(
        self, job_id: str, change: Callable[[Job], Job], events: Sequence[JobEvent] = (), also: Also | None = None
    ) -> Job:
        """Apply `change` to the job, with events and `also`, in one transaction; returns the new job. `change` may
        raise to refuse."""

        def apply(connection: Connection) -> Job:
            job = find_job(connection, job_id)
            assert job is not None, "a job that has not ended is not forgotten"
            changed = change(job)
            save_job(connection, changed)
            add_events(connection, job_id, events)
            if also is not None:
                also(connection)
            return changed

        return await self._write(apply)

    async def pause(self, job: Job) -> Job:
        """Raises IllegalTransition if the job's status does not allow it; likewise `resume` and `cancel`."""
        return await self.change(job.job_id, Job.paused, [job_event("The job was paused")])

    async def resume(self, job: Job) -> Job:
        return await self.change(job.job_id, Job.resumed, [job_event("The job was resumed")])

    async def cancel(self, job: Job) -> Job:
        now_s = int(time.time())
        return await self.change(job.job_id, lambda now: now.cancelled(now_s), [job_event("The job was cancelled")])

    async def recount(self) -> None:
        self._on_counts(await self._database.run(count_jobs))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a read-only query."""
        return await self._database.run(work)

    def close(self) -> None:
        """End all `follow` iterations."""
        self._is_closed = True
        self._watchers.tell_all()

    async def _write(self, work: Callable[[Connection], Job]) -> Job:
        def work_and_count(connection: Connection) -> tuple[Job, Mapping[str, int]]:
            return work(connection), count_jobs(connection)

        job, counts = await self._database.run(work_and_count)
        self._on_counts(counts)
        self._watchers.tell(job.job_id)
        for listener in self._listeners:
            listener(job)
        return job


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(_ID_BYTES)


def job_event(
    message: str, level: Literal["info", "warn", "error"] = "info", data: Mapping[str, float] | None = None
) -> JobEvent:
    """An event with the present time. data: a step's numbers."""
    kind: Literal["message", "metrics"] = "message" if data is None else "metrics"
    return JobEvent(new_id("ftevent-"), int(time.time()), level, message, kind, data)


def _look(job: Job, last: int, connection: Connection) -> tuple[bool, list[tuple[int, JobEvent]]]:
    known = find_job(connection, job.job_id)
    return known is None or known.status.is_final, events_after(connection, job.job_id, last, _EVENTS_AT_ONCE)


def _found(page: Page[T] | None) -> Page[T]:
    if page is None:
        raise InvalidRequest("after must be the id of an entry of this list.", param="after")
    return page
