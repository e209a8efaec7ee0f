"""What a fault of ours costs. What batches do else: test_batch_jobs.py."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from service.batch_jobs.batch import Batch, BatchStatus
from service.batch_jobs.batch_jobs import BatchJobs
from service.batch_jobs.batch_output import ANSWERS, Answer, BatchOutput
from service.batch_jobs.batch_run import BatchRun
from service.storage.database import FILE_NAME
from service.storage.file_table import StoredFile
from service.storage.listing import PageQuery
from service.storage.storage import Storage
from tests.batch_jobs.fake_batches import begin, ended, lines, ok, told, with_jobs

_ALL = PageQuery(None, 1000, True)


def test_a_fault_of_ours_costs_one_batch(tmp_path: Path) -> None:
    async def ask(batch: Batch, body: bytes) -> Answer:
        if json.loads(body)["n"] == 13:
            raise RuntimeError("a defect")
        return await ok(batch, body)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        bad, good = [await begin(storage, jobs, lines(range(n, n + 5))) for n in (10, 20)]
        bad, good = [await ended(jobs, batch.batch_id) for batch in (bad, good)]
        assert (bad.status, good.status) == (BatchStatus.FAILED, BatchStatus.COMPLETED)
        assert bad.errors[0].code == "server_error"

    with_jobs(tmp_path, use, ask)


async def _defect_at_5(batch: Batch, body: bytes) -> Answer:
    number = json.loads(body)["n"]
    if number == 5:
        raise RuntimeError("a defect")
    if number > 5:
        await asyncio.sleep(1000)
    return Answer(400 if number == 3 else 200, "r", body)


async def _check_failed(storage: Storage, jobs: BatchJobs, batch_id: str) -> None:
    """By `_defect_at_5`, of ten lines of which the first five and no more were answered."""
    batch = await ended(jobs, batch_id)
    assert (batch.status, [error.code for error in batch.errors]) == (BatchStatus.FAILED, ["server_error"])
    assert batch.reached_at.keys() == {"in_progress", "finalizing", "failed"}
    assert (batch.num_lines, batch.num_completed, batch.num_failed) == (10, 4, 1)
    results = {result["custom_id"]: result for result in await told(storage, batch)}
    statuses = {name: each["response"] and each["response"]["status_code"] for name, each in results.items()}
    assert statuses == {**dict.fromkeys("0124", 200), "3": 400, **dict.fromkeys("56789", None)}
    assert {results[name]["error"]["code"] for name in "56789"} == {"batch_failed"}
    while batch_id in jobs._tasks:
        await asyncio.sleep(0.01)
    assert not (storage.folder / "batches" / batch_id).exists()
    files = await storage.files.list("ann", None, _ALL)
    assert storage.budget.num_bytes == sum(file.num_bytes for file in files.items)
    await storage.files.delete(batch.input_file_id, "ann")


def test_a_batch_that_a_fault_of_ours_ends_keeps_its_answers(tmp_path: Path) -> None:
    async def use(storage: Storage, jobs: BatchJobs) -> None:
        await _check_failed(storage, jobs, (await begin(storage, jobs, lines(range(10)))).batch_id)

    with_jobs(tmp_path, use, _defect_at_5)


@pytest.mark.parametrize("num_steps", range(1, 5))
def test_killed_while_a_fault_of_ours_ends_it_it_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_steps: int
) -> None:
    """Before the batch is stored for the nth time."""
    ids = list[str]()

    async def first(storage: Storage, jobs: BatchJobs) -> None:
        left, save, stopped = num_steps, jobs._save, asyncio.Event()

        async def dying(batch: Batch) -> None:
            nonlocal left
            left -= 1
            if left < 1:
                stopped.set()
                await asyncio.sleep(3600)
            await save(batch)

        monkeypatch.setattr(jobs, "_save", dying)
        ids.append((await begin(storage, jobs, lines(range(10)))).batch_id)
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), 1)

    async def second(storage: Storage, jobs: BatchJobs) -> None:
        await _check_failed(storage, jobs, ids[0])

    with_jobs(tmp_path, first, _defect_at_5)
    with_jobs(tmp_path, second, _defect_at_5)


def test_a_fault_of_ours_where_unrun_lines_are_told_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(run: BatchRun, output: BatchOutput) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(BatchRun, "_tell_of_the_rest", broken)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        batch = await ended(jobs, (await begin(storage, jobs, lines(range(10)))).batch_id)
        assert (batch.status, batch.num_completed) == (BatchStatus.FAILED, 4)
        assert sorted(result["custom_id"] for result in await told(storage, batch)) == list("01234")

    with_jobs(tmp_path, use, _defect_at_5)


def test_a_batch_that_fails_leaves_nothing_that_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = BatchOutput.append

    def slowly(output: BatchOutput, answers: bytes, errors: bytes) -> None:
        time.sleep(0.05)
        append(output, answers, errors)

    async def ask(batch: Batch, body: bytes) -> Answer:
        if json.loads(body)["n"] == 4:
            await asyncio.sleep(0.02)  # the others' answers are being written
            raise RuntimeError("a defect")
        return await ok(batch, body)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        lost = list[dict[str, Any]]()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: lost.append(context))
        batch = await ended(jobs, (await begin(storage, jobs, lines(range(5)))).batch_id)
        assert batch.status is BatchStatus.FAILED
        results = await told(storage, batch)
        await asyncio.sleep(0.2)
        gc.collect()
        assert not lost, "no task has failed unseen"
        assert await told(storage, batch) == results
        files = await storage.files.list("ann", None, _ALL)
        assert storage.budget.num_bytes == sum(file.num_bytes for file in files.items)

    monkeypatch.setattr(BatchOutput, "append", slowly)
    with_jobs(tmp_path, use, ask)


def test_results_that_cannot_be_put_down_fail_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not be told to be complete without them."""

    def broken(output: BatchOutput, results: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(BatchOutput, "lines_of", broken)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        batch = await ended(jobs, (await begin(storage, jobs, lines(range(5)))).batch_id)
        assert (batch.status, batch.errors[0].code) == (BatchStatus.FAILED, "server_error")

    with_jobs(tmp_path, use)


def _broken(*_: object) -> None:
    raise RuntimeError("a defect")


async def _check_complete(storage: Storage, jobs: BatchJobs, batch_id: str) -> None:
    """By `ok`, of ten lines."""
    batch = await ended(jobs, batch_id)
    assert (batch.status, batch.errors, batch.num_completed) == (BatchStatus.COMPLETED, (), 10)
    assert len(await told(storage, batch)) == 10
    while batch_id in jobs._tasks:
        await asyncio.sleep(0.01)
    assert not (storage.folder / "batches" / batch_id).exists()
    files = await storage.files.list("ann", None, _ALL)
    assert storage.budget.num_bytes == sum(file.num_bytes for file in files.items)


@pytest.mark.parametrize("num_faults", [1, 2, 1000])
def test_a_fault_of_ours_where_results_are_handed_over_costs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_faults: int
) -> None:
    """They are handed over by another try, or by a later run of the server."""
    ids, left = list[str](), iter(range(num_faults))

    async def first(storage: Storage, jobs: BatchJobs) -> None:
        adopt = storage.files.adopt

        async def adopt_later(path: Path, file: StoredFile) -> None:
            if next(left, None) is not None:
                raise RuntimeError("a defect")
            await adopt(path, file)

        monkeypatch.setattr(storage.files, "adopt", adopt_later)
        ids.append((await begin(storage, jobs, lines(range(10)))).batch_id)
        while jobs._tasks:
            await asyncio.sleep(0.01)
        if num_faults == 1:
            await _check_complete(storage, jobs, ids[0])
        else:
            batch = await jobs.get(ids[0], "ann")
            assert (batch.status, batch.num_completed) == (BatchStatus.FINALIZING, 10)
            assert storage.budget.num_bytes == len(lines(range(10)))
            assert (await jobs.cancel(ids[0], "ann")).status is BatchStatus.FINALIZING

    async def second(storage: Storage, jobs: BatchJobs) -> None:
        await _check_complete(storage, jobs, ids[0])

    with_jobs(tmp_path, first)
    with_jobs(tmp_path, second)


async def _some(batch: Batch, body: bytes) -> Answer:
    """The first five lines are answered, the others never."""
    if json.loads(body)["n"] > 4:
        await asyncio.sleep(1000)
    return Answer(200, "r", body)


def _interrupted(folder: Path) -> str:
    """A batch of ten lines, by its id, that a server has left after five answers."""
    ids = list[str]()

    async def until_five(storage: Storage, jobs: BatchJobs) -> None:
        ids.append((await begin(storage, jobs, lines(range(10)))).batch_id)
        while (await jobs.get(ids[0], "ann")).num_completed < 5:
            await asyncio.sleep(0.01)

    with_jobs(folder, until_five, _some)
    return ids[0]


def test_a_fault_of_ours_where_results_are_counted_costs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart."""
    batch_id = _interrupted(tmp_path)

    async def second(storage: Storage, jobs: BatchJobs) -> None:
        batch = await ended(jobs, batch_id)
        assert (batch.status, batch.errors[0].code) == (BatchStatus.FAILED, "server_error")
        assert sorted(result["custom_id"] for result in await told(storage, batch)) == list("01234")

    monkeypatch.setattr(BatchOutput, "recover", _broken)
    with_jobs(tmp_path, second, _some)


def test_a_batch_whose_input_is_gone_after_a_restart_keeps_its_answers(tmp_path: Path) -> None:
    batch_id = _interrupted(tmp_path)

    async def second(storage: Storage, jobs: BatchJobs) -> None:
        batch = await ended(jobs, batch_id)
        assert (batch.status, batch.errors[0].code) == (BatchStatus.FAILED, "file_not_found")
        assert (batch.num_lines, batch.num_completed, batch.num_failed) == (10, 5, 0)
        assert sorted(result["custom_id"] for result in await told(storage, batch)) == list("01234")

    with (tmp_path / "batches" / batch_id / ANSWERS).open("ab") as results:
        results.write(b'{"id":"batch_req_5')  # as if it had been killed there
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        database.execute("DELETE FROM files")
        database.commit()
    with_jobs(tmp_path, second)
