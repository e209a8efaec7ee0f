from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from service.errors import InvalidRequest, NotFound, RateLimited
from service.finetune import jobs as module
from service.finetune.job import IllegalTransition, Job, JobSpec, JobStatus
from service.finetune.job_table import JOBS
from service.finetune.jobs import FineTuningJobs, job_event
from service.storage.listing import PageQuery
from service.storage.storage import Storage

SPEC = JobSpec("base", "file-1")


def play(folder: Path, scene: Callable[[FineTuningJobs], Awaitable[None]]) -> None:
    async def whole() -> None:
        storage = Storage(folder, 10**6, (JOBS,))
        try:
            await scene(FineTuningJobs(storage.database, "weights"))
        finally:
            await storage.close()

    asyncio.run(whole())


def test_a_job_is_its_clients_alone(tmp_path: Path):
    async def scene(jobs: FineTuningJobs) -> None:
        job = await jobs.create("team", SPEC)
        assert await jobs.get(job.job_id, "team") == job
        with pytest.raises(NotFound):
            await jobs.get(job.job_id, "others")

    play(tmp_path, scene)


def test_a_client_has_so_many_unfinished_jobs_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_UNFINISHED", 2)

    async def scene(jobs: FineTuningJobs) -> None:
        job = await jobs.create("team", SPEC)
        await jobs.create("team", SPEC)
        with pytest.raises(RateLimited, match="2"):
            await jobs.create("team", SPEC)
        await jobs.create("others", SPEC)
        await jobs.change(job.job_id, lambda now: now.cancelled(1))
        await jobs.create("team", SPEC)

    play(tmp_path, scene)


def test_a_change_that_is_refused_leaves_nothing_behind(tmp_path: Path):
    async def scene(jobs: FineTuningJobs) -> None:
        job = await jobs.create("team", SPEC)
        told: list[Job] = []
        jobs.listen(told.append)
        with pytest.raises(IllegalTransition):
            await jobs.change(job.job_id, Job.resumed, [job_event("resumed")])
        with pytest.raises(ZeroDivisionError):
            await jobs.change(job.job_id, Job.paused, [job_event("paused")], lambda _: print(1 / 0))
        assert await jobs.get(job.job_id, "team") == job
        events = await jobs.events(job, PageQuery(None, 10, False))
        assert [event.message.partition(" ")[0] for event in events.items] == ["Validating", "Created"]
        assert told == []

    play(tmp_path, scene)


def test_whoever_listens_is_told_of_what_is_written_and_of_the_counts_before(tmp_path: Path):
    async def scene(storage: Storage) -> None:
        told: list[object] = []
        jobs = FineTuningJobs(storage.database, "weights", lambda counts: told.append(counts["paused"]))
        jobs.listen(lambda job: told.append(job.status))
        job = await jobs.create("team", SPEC)
        await jobs.change(job.job_id, Job.paused)
        await jobs.recount()
        assert told == [0, JobStatus.VALIDATING_FILES, 1, JobStatus.PAUSED, 1]

    async def whole() -> None:
        storage = Storage(tmp_path, 10**6, (JOBS,))
        await scene(storage)
        await storage.close()

    asyncio.run(whole())


@pytest.mark.parametrize("num_followers", [1, 3])
def test_followers_are_told_every_event_once_and_in_order_until_the_job_has_ended(tmp_path: Path, num_followers: int):
    async def scene(jobs: FineTuningJobs) -> None:
        job = await jobs.create("team", SPEC)

        async def follow() -> list[str]:
            return [event.message async for event in jobs.follow(job)]

        following = [asyncio.create_task(follow()) for _ in range(num_followers)]
        for number in range(120):
            await jobs.change(job.job_id, lambda now: now, [job_event(f"{number}")])
        await jobs.change(job.job_id, lambda now: now.cancelled(1), [job_event("cancelled")])
        for task in following:
            told = (await asyncio.wait_for(task, 10))[2:]
            assert told == [*map(str, range(120)), "cancelled"]
        assert not jobs._watchers._events

    play(tmp_path, scene)


def test_followers_end_when_the_server_does(tmp_path: Path):
    async def scene(jobs: FineTuningJobs) -> None:
        job = await jobs.create("team", SPEC)

        async def follow() -> int:
            return len([event async for event in jobs.follow(job)])

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.05)
        jobs.close()
        assert await asyncio.wait_for(following, 10) == 2

    play(tmp_path, scene)


def test_a_page_begins_after_one_of_its_own_list(tmp_path: Path):
    async def scene(jobs: FineTuningJobs) -> None:
        job = await jobs.create("team", SPEC)
        page = await jobs.list("team", {}, PageQuery(None, 1, False))
        assert (page.items, page.has_more) == ([job], False)
        for look in (jobs.events, jobs.checkpoints):
            with pytest.raises(InvalidRequest, match="after"):
                await look(job, PageQuery("nothing", 1, False))

    play(tmp_path, scene)
