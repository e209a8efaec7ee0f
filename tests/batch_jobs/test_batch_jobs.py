from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from service.batch_jobs import batch_jobs, batch_run, result_writer
from service.batch_jobs.batch import Batch, BatchStatus
from service.batch_jobs.batch_input import CheckedInput
from service.batch_jobs.batch_jobs import BatchJobs
from service.batch_jobs.batch_output import Answer, BatchOutput
from service.errors import StorageFull, StorageUnavailable
from service.storage.database import FILE_NAME
from service.storage.file_table import StoredFile
from service.storage.listing import PageQuery
from service.storage.storage import Storage
from tests.batch_jobs.fake_batches import ENDPOINT, HOUR, begin, ended, lines, ok, told, with_jobs

NUM_LINES = 400
_ALL = PageQuery(None, 1000, True)

RUN = """
import asyncio, json, os, sys
from pathlib import Path
from service.batch_jobs.batch_output import Answer
from tests.batch_jobs.fake_batches import begin, ended, lines, with_jobs

log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

async def ask(batch, body):
    number = json.loads(body)["n"]
    os.write(log, b"%d\\n" % number)
    await asyncio.sleep(0.002 * (number % 7))
    return Answer(200 if number % 5 else 400, "r", body)

async def use(storage, jobs):
    page = await storage.database.run(lambda c: c.execute("SELECT batch_id FROM batches").fetchone())
    batch_id = (await begin(storage, jobs, lines(range(int(sys.argv[3]))))).batch_id if page is None else page[0]
    print("begun", flush=True)
    await ended(jobs, batch_id)
    print(batch_id, flush=True)

with_jobs(Path(sys.argv[1]), use, ask)
"""


def test_killed_at_random_points_every_line_is_done_once_and_what_is_on_the_disk_is_not_asked_again(
    tmp_path: Path,
) -> None:
    folder, log = tmp_path / "data", tmp_path / "asked"
    command = [sys.executable, "-c", RUN, str(folder), str(log), str(NUM_LINES)]
    chance, batch_id = random.Random(1), None
    for _ in range(40):
        on_disk = _numbers_on_disk(folder)
        num_asked = len(log.read_text().splitlines()) if log.exists() else 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "begun\n"
            time.sleep(chance.uniform(0.0, 0.3))
            running.kill()
            rest = running.stdout.read().split()
        asked = [int(number) for number in log.read_text().splitlines()[num_asked:]]
        assert not on_disk & set(asked)
        if rest:
            (batch_id,) = rest
            break
    assert batch_id is not None, "it comes to its end"

    async def check(storage: Storage, jobs: BatchJobs) -> None:
        batch = await jobs.get(batch_id, "ann")
        assert batch.status is BatchStatus.COMPLETED
        counts = Counter(int(answer["custom_id"]) for answer in await told(storage, batch))
        assert counts == Counter(range(NUM_LINES))
        assert (batch.num_completed, batch.num_failed) == (NUM_LINES * 4 // 5, NUM_LINES // 5)
        files = await storage.files.list("ann", None, _ALL)
        assert storage.budget.num_bytes == sum(file.num_bytes for file in files.items)
        assert not list((folder / "batches").glob("*"))

    with_jobs(folder, check)


def _numbers_on_disk(folder: Path) -> set[int]:
    """Of lines that are whole in the files of a batch under way."""
    texts = [text for path in folder.glob("batches/*/*.jsonl") for text in path.read_bytes().splitlines(keepends=True)]
    return {int(json.loads(text)["custom_id"]) for text in texts if text.endswith(b"\n")}


@pytest.mark.parametrize("num_steps", range(1, 12))
def test_killed_between_any_two_transactions_it_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_steps: int
) -> None:
    """A transaction that is never made stands for the end of the process before it."""
    ids = list[str]()

    async def first(storage: Storage, jobs: BatchJobs) -> None:
        ids.append((await begin(storage, jobs, lines(range(5)))).batch_id)
        left, run = num_steps, storage.database.run
        stopped = asyncio.Event()

        async def dying(work: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                stopped.set()
                await asyncio.sleep(3600)
            return await run(work)

        monkeypatch.setattr(storage.database, "run", dying)
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), 0.5)
        monkeypatch.undo()

    async def second(storage: Storage, jobs: BatchJobs) -> None:
        batch = await ended(jobs, ids[0])
        assert batch.status is BatchStatus.COMPLETED
        assert sorted(answer["custom_id"] for answer in await told(storage, batch)) == list("01234")
        files = await storage.files.list("ann", None, _ALL)
        assert storage.budget.num_bytes == sum(file.num_bytes for file in files.items)

    with_jobs(tmp_path, first)
    with_jobs(tmp_path, second)


def test_a_full_storage_delays_the_batch_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_writer, "_RETRY_S", 0.02)
    asked = Counter[bytes]()

    async def ask(batch: Batch, body: bytes) -> Answer:
        asked[body] += 1
        return await ok(batch, body)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        content = lines(range(50))
        filler = await storage.files.add("ann", "batch", "filler", b"x" * 20_000)
        batch = await begin(storage, jobs, content)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert (await jobs.get(batch.batch_id, "ann")).status is BatchStatus.IN_PROGRESS
        await storage.files.delete(filler.file_id, "ann")
        batch = await ended(jobs, batch.batch_id)
        assert len(await told(storage, batch)) == batch.num_completed == 50
        assert set(asked.values()) == {1}

    with_jobs(tmp_path, use, ask, max_bytes=20_000 + len(lines(range(50))) + 500)


def test_answers_that_say_later_are_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.batch_jobs.batch_run._RETRY_S", 0.01)
    asked = Counter[bytes]()

    async def ask(batch: Batch, body: bytes) -> Answer:
        asked[body] += 1
        return Answer((503, 429, 200)[asked[body] - 1], "r", body)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        batch = await ended(jobs, (await begin(storage, jobs, lines(range(5)))).batch_id)
        assert (batch.num_completed, batch.num_failed) == (5, 0)

    with_jobs(tmp_path, use, ask)
    assert set(asked.values()) == {3}


def test_an_input_that_is_gone_after_a_restart_fails_its_batch(tmp_path: Path) -> None:
    async def never(batch: Batch, body: bytes) -> Answer:
        await asyncio.sleep(3600)
        raise AssertionError

    ids = []

    async def first(storage: Storage, jobs: BatchJobs) -> None:
        ids.append((await begin(storage, jobs, lines(range(5)))).batch_id)
        await asyncio.sleep(0.05)

    async def second(storage: Storage, jobs: BatchJobs) -> None:
        batch = await ended(jobs, ids[0])
        assert (batch.status, batch.errors[0].code) == (BatchStatus.FAILED, "file_not_found")

    with_jobs(tmp_path, first, never)
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("DELETE FROM files")
    database.commit()
    database.close()
    with_jobs(tmp_path, second)


def test_clients_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_jobs, "_MAX_RUNNING", 2)
    order = list[str]()

    async def ask(batch: Batch, body: bytes) -> Answer:
        if batch.client not in order[-1:]:
            order.append(batch.client)
        await asyncio.sleep(0.02)
        return await ok(batch, body)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        made = []
        for client in ("ann", "ann", "ann", "ann", "bob"):
            file = await storage.files.add(client, "batch", "in", lines(range(3)))
            made.append(await jobs.create(client, "/v1/completions", file.file_id, ("1h", 3600), None, None))
        bobs = await ended(jobs, made[-1].batch_id, "bob")
        anns = [await ended(jobs, batch.batch_id) for batch in made[:-1]]
        assert bobs.reached_at["completed"] <= max(batch.reached_at["completed"] for batch in anns)
        assert "bob" in order[: order.index("bob") + 1] and order[-1] == "ann", "the last of ann's is not before bob's"

    with_jobs(tmp_path, use, ask)


def test_cancelled_before_it_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_jobs, "_MAX_RUNNING", 0)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        batch = await begin(storage, jobs, lines(range(5)))
        assert jobs.count() == {"validating": 1}
        batch = await jobs.cancel(batch.batch_id, "ann")
        assert (batch.status, batch.output_file_id) == (BatchStatus.CANCELLED, None)
        assert (await jobs.get(batch.batch_id, "ann")) == batch
        await storage.files.delete(batch.input_file_id, "ann")

    with_jobs(tmp_path, use)


def test_what_is_left_and_what_is_answered_are_all_lines(tmp_path: Path) -> None:
    seen = list[int]()

    async def ask(batch: Batch, body: bytes) -> Answer:
        await asyncio.sleep(0.01)
        return Answer(200, "r", body)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        batch = await begin(storage, jobs, lines(range(30)))
        while not (now := await jobs.get(batch.batch_id, batch.client)).is_over:
            if now.num_lines and jobs.num_lines_left:
                assert jobs.num_lines_left + jobs.lines_ended.total() == 30
                seen.append(jobs.num_lines_left)
            await asyncio.sleep(0.001)
        assert (jobs.num_lines_left, jobs.lines_ended.total()) == (0, 30)

    with_jobs(tmp_path, use, ask, most_lines=3)
    assert seen and seen == sorted(seen, reverse=True)


def test_an_end_is_told_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is told of an end finds it after a crash, too."""
    save, may_save = BatchJobs._save, asyncio.Event()

    async def slow_save(jobs: BatchJobs, batch: Batch) -> None:
        if batch.is_over:
            await may_save.wait()
        await save(jobs, batch)

    monkeypatch.setattr(BatchJobs, "_save", slow_save)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        batch_id = (await begin(storage, jobs, lines(range(3)))).batch_id
        while (run := jobs._runs.get(batch_id)) is None or not run.batch.is_over:
            await asyncio.sleep(0.001)
        told = await jobs.get(batch_id, "ann")
        assert (told.status, told.num_completed) == (BatchStatus.FINALIZING, 3)
        may_save.set()
        assert (await ended(jobs, batch_id)).status is BatchStatus.COMPLETED

    with_jobs(tmp_path, use)


def test_cancelled_while_it_waits_to_go_on_after_a_restart_it_keeps_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not wait for the others, which may take hours."""
    monkeypatch.setattr(batch_jobs, "_MAX_RUNNING", 2)
    waits, others = "", set[str]()

    async def half(batch: Batch, body: bytes) -> Answer:
        if json.loads(body)["n"] >= 5:
            await asyncio.sleep(1000)
        return await ok(batch, body)

    async def first(storage: Storage, jobs: BatchJobs) -> None:
        nonlocal waits
        others.add((await begin(storage, jobs, lines(range(10)))).batch_id)
        waits = (await begin(storage, jobs, lines(range(10)))).batch_id
        file = await storage.files.add("bob", "batch", "in", lines(range(10)))
        others.add((await jobs.create("bob", ENDPOINT, file.file_id, HOUR, None, None)).batch_id)
        while (await jobs.get(waits, "ann")).num_completed < 5:
            await asyncio.sleep(0.01)

    async def second(storage: Storage, jobs: BatchJobs) -> None:
        while len(jobs._runs) < 2:
            await asyncio.sleep(0.01)
        assert set(jobs._runs) == others
        assert (await jobs.get(waits, "ann")).status is BatchStatus.IN_PROGRESS
        cancelled = await jobs.cancel(waits, "ann")
        assert cancelled.status is (await jobs.get(waits, "ann")).status is BatchStatus.CANCELLING
        batch = await ended(jobs, waits)
        results = await told(storage, batch)
        assert batch.status is BatchStatus.CANCELLED
        assert sorted(result["custom_id"] for result in results if result["response"] is not None) == list("01234")
        assert sum(result["error"] is not None for result in results) == 5
        while waits in jobs._tasks:
            await asyncio.sleep(0.01)
        assert not (storage.folder / "batches" / waits).exists()
        await storage.files.delete(batch.input_file_id, "ann")

    with_jobs(tmp_path, first, half)
    with_jobs(tmp_path, second, half)


@pytest.mark.parametrize(
    "content, end, num_lines, codes",
    [
        (lines([1]), BatchStatus.CANCELLED, 1, []),
        (b"no request", BatchStatus.FAILED, 0, ["invalid_custom_id"]),
    ],
)
def test_cancelled_before_its_input_was_checked_it_ends_after_a_restart(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    end: BatchStatus,
    num_lines: int,
    codes: list[str],
) -> None:
    ids = list[str]()

    async def first(storage: Storage, jobs: BatchJobs) -> None:
        ids.append((await begin(storage, jobs, content)).batch_id)
        while ids[0] not in jobs._runs:
            await asyncio.sleep(0.001)
        assert (await jobs.cancel(ids[0], "ann")).status is BatchStatus.CANCELLING
        await asyncio.sleep(0.05)

    async def second(storage: Storage, jobs: BatchJobs) -> None:
        batch = await ended(jobs, ids[0])
        assert (batch.status, batch.num_lines, [error.code for error in batch.errors]) == (end, num_lines, codes)

    def never(path: Path, endpoint: str) -> CheckedInput:
        time.sleep(0.3)
        raise StorageUnavailable("The disk does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(batch_run, "check_input", never)
        with_jobs(tmp_path, first)
    with_jobs(tmp_path, second)


@pytest.mark.parametrize(
    "full, status, end",
    [
        ("adopt", BatchStatus.FINALIZING, BatchStatus.COMPLETED),
        ("output", BatchStatus.CANCELLING, BatchStatus.CANCELLED),
    ],
)
def test_cancelled_while_it_waits_for_a_full_disk_it_tells_what_it_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str, status: BatchStatus, end: BatchStatus
) -> None:
    monkeypatch.setattr(batch_jobs, "_RETRY_S", 0.2)
    left, open_output = [1], BatchOutput

    def full_once(at: str) -> None:
        if at == full and left:
            left.pop()
            raise StorageFull("full")

    def output(folder: Path, name: str) -> BatchOutput:
        full_once("output")
        return open_output(folder, name)

    monkeypatch.setattr(batch_run, "BatchOutput", output)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        adopt = storage.files.adopt

        async def adopt_later(path: Path, file: StoredFile) -> None:
            full_once("adopt")
            await adopt(path, file)

        monkeypatch.setattr(storage.files, "adopt", adopt_later)
        batch_id = (await begin(storage, jobs, lines(range(3)))).batch_id
        while left or batch_id in jobs._runs:
            await asyncio.sleep(0.01)
        assert (await jobs.cancel(batch_id, "ann")).status is status
        assert (await jobs.get(batch_id, "ann")).status is status
        assert (await ended(jobs, batch_id)).status is end

    with_jobs(tmp_path, use)


def test_a_cancel_that_cannot_be_stored_leaves_the_batch_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_jobs, "_MAX_RUNNING", 0)

    async def use(storage: Storage, jobs: BatchJobs) -> None:
        batch = await begin(storage, jobs, lines(range(3)))

        async def full(jobs: BatchJobs, batch: Batch) -> None:
            raise StorageFull("full")

        with monkeypatch.context() as patch, pytest.raises(StorageFull):
            patch.setattr(BatchJobs, "_save", full)
            await jobs.cancel(batch.batch_id, "ann")
        monkeypatch.setattr(batch_jobs, "_MAX_RUNNING", 1)
        jobs._begin_next()
        batch = await asyncio.wait_for(ended(jobs, batch.batch_id), 5)
        assert batch.status is BatchStatus.COMPLETED

    with_jobs(tmp_path, use)
