from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import StorageFull
from service.finetune.job_folders import JobFolders
from service.storage.storage_budget import StorageBudget


@pytest.fixture
def budget() -> StorageBudget:
    return StorageBudget(100)


@pytest.fixture
def folders(tmp_path: Path, budget: StorageBudget) -> JobFolders:
    return JobFolders(tmp_path / "jobs", budget)


def fill(folders: JobFolders, job_id: str, num_bytes: int) -> None:
    folders.make(job_id)
    folders.checkpoint(job_id).write_bytes(b"x" * num_bytes)


def test_what_a_checkpoint_takes_counts_until_its_job_has_ended(folders: JobFolders, budget: StorageBudget):
    for num_bytes in (60, 20, 90):
        fill(folders, "a", num_bytes)
        folders.count("a")
        assert budget.num_bytes == num_bytes
    fill(folders, "b", 20)
    with pytest.raises(StorageFull):
        folders.count("b")
    folders.forget("b")
    folders.forget("a")
    folders.forget("a")
    assert budget.num_bytes == 0
    assert not folders.checkpoint("a").exists()


def test_after_a_restart_what_is_left_of_unfinished_jobs_counts_and_the_rest_goes(
    tmp_path: Path, budget: StorageBudget
):
    before = JobFolders(tmp_path / "jobs", StorageBudget(100))
    fill(before, "a", 60)
    fill(before, "b", 30)
    after = JobFolders(tmp_path / "jobs", budget)
    after.adopt(after.sweep(["a"]))
    assert budget.num_bytes == 60
    assert after.checkpoint("a").exists() and not after.checkpoint("b").exists()
    after.forget("a")
    assert budget.num_bytes == 0


def test_there_may_be_nothing_yet(folders: JobFolders):
    assert folders.sweep(["a"]) == {}
    folders.forget("a")
