from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from service.errors import InvalidRequest, NotFound, StorageFull
from service.storage.file_store import new_file_id
from service.storage.file_table import StoredFile
from service.storage.listing import PageQuery
from service.storage.storage import Storage

ALL = PageQuery(None, 1000, True)
HOUR_S = 3600


def with_storage(folder: Path, use: Callable[[Storage], Coroutine[Any, Any, Any]], max_bytes: int = 1_000_000) -> Any:
    async def main() -> Any:
        storage = Storage(folder, max_bytes)
        try:
            return await use(storage)
        finally:
            await storage.close()

    return asyncio.run(main())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "files").iterdir()}


def test_a_file_is_there_again_after_a_restart(tmp_path: Path) -> None:
    file = with_storage(tmp_path, lambda storage: storage.files.add("ann", "batch", "a.jsonl", b"content"))

    async def use(storage: Storage) -> None:
        found = await storage.files.get(file.file_id, "ann")
        assert found == file
        assert (found.filename, found.num_bytes) == ("a.jsonl", 7)
        assert storage.files.path_of(found).read_bytes() == b"content"
        assert storage.budget.num_bytes == 7

    with_storage(tmp_path, use)


def test_only_its_client_finds_it(tmp_path: Path) -> None:
    async def use(storage: Storage) -> None:
        files = storage.files
        file = await files.add("ann", "batch", "a", b"1")
        for ask in (files.get, files.hold, files.delete):
            with pytest.raises(NotFound):
                await ask(file.file_id, "bob")
        assert not (await files.list("bob", None, ALL)).items
        with pytest.raises(InvalidRequest):
            await files.list("bob", None, PageQuery(file.file_id, 1, True))
        await files.delete(file.file_id, "ann")
        with pytest.raises(NotFound):
            await files.get(file.file_id, "ann")
        assert (contents(tmp_path), storage.budget.num_bytes) == ({}, 0)

    with_storage(tmp_path, use)


@pytest.mark.parametrize("is_ascending", [True, False])
def test_pages_have_every_file_once_in_order(tmp_path: Path, is_ascending: bool) -> None:
    async def use(storage: Storage) -> None:
        made = [(await storage.files.add("ann", "batch", str(number), b"")).filename for number in range(7)]
        await storage.files.add("ann", "fine-tune", "other", b"")
        seen, after, has_more = [], None, True
        while has_more:
            items, has_more = await storage.files.list("ann", "batch", PageQuery(after, 3, is_ascending))
            seen += [file.filename for file in items]
            after = items[-1].file_id
        assert seen == (made if is_ascending else made[::-1])

    with_storage(tmp_path, use)


def test_files_are_counted_over_restarts(tmp_path: Path) -> None:
    async def first(storage: Storage) -> None:
        made = [await storage.files.add("ann", "batch", "a", b"") for _ in range(3)]
        await storage.files.delete(made[0].file_id, "ann")
        assert storage.budget.num_files == 2

    async def second(storage: Storage) -> None:
        await storage.files.list("ann", None, ALL)
        assert storage.budget.num_files == 2

    with_storage(tmp_path, first)
    with_storage(tmp_path, second)


def test_what_is_held_is_not_deleted(tmp_path: Path) -> None:
    async def use(storage: Storage) -> None:
        file = await storage.files.add("ann", "batch", "a", b"1")
        for _ in range(2):
            await storage.files.hold(file.file_id, "ann")
        for _ in range(2):
            with pytest.raises(InvalidRequest) as refused:
                await storage.files.delete(file.file_id, "ann")
            assert refused.value.code == "file_in_use"
            storage.files.release(file.file_id)
        await storage.files.delete(file.file_id, "ann")

    with_storage(tmp_path, use)


def test_what_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    async def use(storage: Storage) -> None:
        await storage.files.add("ann", "batch", "a", b"123456")
        with pytest.raises(StorageFull):
            await storage.files.upload("ann", num_bytes=5)
        upload = await storage.files.upload("ann")
        await upload.write(b"1234")
        with pytest.raises(StorageFull):
            await upload.write(b"5")
        await upload.discard()
        await upload.discard()
        assert storage.budget.num_bytes == 6
        await storage.files.add("ann", "batch", "b", b"1234")
        assert len(contents(tmp_path)) == 2

    with_storage(tmp_path, use, max_bytes=10)


def test_a_full_disk_fails_the_upload_alone(tmp_path: Path) -> None:
    async def use(storage: Storage) -> None:
        file = await storage.files.add("ann", "batch", "a", b"1")
        upload = await storage.files.upload("ann")
        upload._output = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - it says ENOSPC to every write
        with pytest.raises(StorageFull, match="disk is full"):
            await upload.write(b"12")
        await upload.discard()
        assert (contents(tmp_path), storage.budget.num_bytes) == ({file.file_id: b"1"}, 1)
        await storage.files.add("ann", "batch", "c", b"3")

    with_storage(tmp_path, use)


def test_a_row_that_cannot_be_written_leaves_no_contents(tmp_path: Path) -> None:
    async def use(storage: Storage) -> None:
        file = await storage.files.add("ann", "batch", "a", b"1")
        upload = await storage.files.upload("ann")
        await upload.write(b"22")
        await storage.database.run(lambda connection: connection.execute("ALTER TABLE files RENAME TO gone"))
        with pytest.raises(Exception, match="no such table"):
            await upload.commit("batch", "b")
        assert (contents(tmp_path), storage.budget.num_bytes) == ({file.file_id: b"1"}, 1)

    with_storage(tmp_path, use)


def test_its_time_is_over_for_everybody_but_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(storage: Storage) -> None:
        uploads = [await storage.files.upload("ann") for _ in "ab"]
        for upload in uploads:
            await upload.write(b"1")
        held, other = [await upload.commit("batch", name, HOUR_S) for upload, name in zip(uploads, "ab", strict=True)]
        await storage.files.hold(held.file_id, "ann")
        later_s = time.time() + HOUR_S + 1
        monkeypatch.setattr(time, "time", lambda: later_s)
        with pytest.raises(NotFound):
            await storage.files.get(other.file_id, "ann")
        assert (await storage.files.get(held.file_id, "ann")) == held
        assert [file.filename for file in (await storage.files.list("ann", None, ALL)).items] == ["a"]
        assert storage.budget.num_bytes == 1
        storage.files.release(held.file_id)
        assert not (await storage.files.list("ann", None, ALL)).items
        assert contents(tmp_path) == {}

    with_storage(tmp_path, use)


@pytest.mark.parametrize("broken_off", ["before", "after the row", "after all"])
def test_what_a_job_has_written_is_adopted_once_wherever_it_was_broken_off(tmp_path: Path, broken_off: str) -> None:
    file = StoredFile(new_file_id(), "ann", "batch_output", "out", 3, 1)
    source = tmp_path / "out.jsonl"

    async def first(storage: Storage) -> None:
        await storage.files.list("ann", None, ALL)
        source.write_bytes(b"out")
        if broken_off == "after the row":
            await storage.files._insert(file)
        elif broken_off == "after all":
            storage.budget.take(3)
            await storage.files.adopt(source, file)

    async def second(storage: Storage) -> None:
        await storage.files.list("ann", None, ALL)
        storage.budget.take(3)
        await storage.files.adopt(source, file)
        assert storage.budget.num_bytes == 3
        assert await storage.files.get(file.file_id, "ann") == file
        assert contents(tmp_path) == {file.file_id: b"out"}
        assert not source.exists()

    with_storage(tmp_path, first)
    with_storage(tmp_path, second)


UPLOADS = """
import asyncio, hashlib, os, sys
from pathlib import Path
from service.storage.storage import Storage

async def main():
    storage = Storage(Path(sys.argv[1]), 10**9)
    while True:
        content = os.urandom(50_000)
        upload = await storage.files.upload("ann")
        for start in range(0, len(content), 10_000):
            await upload.write(content[start : start + 10_000])
        file = await upload.commit("batch", hashlib.sha256(content).hexdigest())
        print(file.file_id, flush=True)
        if content[0] < 64:
            await storage.files.delete(file.file_id, "ann")
            print("-" + file.file_id, flush=True)

asyncio.run(main())
"""


def test_killed_at_any_point_every_file_is_whole_or_not_there(tmp_path: Path) -> None:
    told = set[str]()
    deleted = set[str]()
    for round_number in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", UPLOADS, str(tmp_path)], stdout=subprocess.PIPE, text=True, env={**os.environ}
        ) as uploading:
            assert uploading.stdout is not None
            lines = [uploading.stdout.readline() for _ in range(3)]
            time.sleep(random.Random(round_number).uniform(0, 0.03))
            uploading.kill()
            lines += uploading.stdout.readlines()
        for line in lines:
            (deleted if line.startswith("-") else told).add(line.strip().lstrip("-"))

    async def check(storage: Storage) -> None:
        items, _ = await storage.files.list("ann", None, ALL)
        there = {file.file_id: storage.files.path_of(file).read_bytes() for file in items}
        assert there == contents(tmp_path)
        assert [file.filename for file in items] == [hashlib.sha256(there[file.file_id]).hexdigest() for file in items]
        missing = told - deleted - there.keys()
        assert len(missing) <= 5, "but for one a round that was being deleted when it was killed"
        assert not deleted & there.keys()
        assert storage.budget.num_bytes == sum(map(len, there.values()))

    with_storage(tmp_path, check)
