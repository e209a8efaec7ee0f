"""Folders with the checkpoints of unfinished jobs."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from service.storage.storage_budget import StorageBudget


class JobFolders:
    """Their contents count against the storage budget. Paths, `make` and `sweep`: any thread; everything else:
    event loop."""

    def __init__(self, folder: Path, budget: StorageBudget) -> None:
        self._folder = folder
        self._budget = budget
        self._num_bytes: dict[str, int] = {}

    def checkpoint(self, job_id: str) -> Path:
        """Path of the job's last checkpoint, whether or not there is one."""
        return self._folder / job_id / "checkpoint"

    def make(self, job_id: str) -> None:
        (self._folder / job_id).mkdir(mode=0o700, parents=True, exist_ok=True)

    def count(self, job_id: str) -> None:
        """Count the folder's present size against the budget. Raises StorageFull if there is not enough room."""
        now, before = size_of(self._folder / job_id), self._num_bytes.get(job_id, 0)
        if now > before:
            self._budget.take(now - before)
        else:
            self._budget.give_back(before - now)
        self._num_bytes[job_id] = now

    def forget(self, job_id: str) -> None:
        """The job has ended: remove its folder, which has a file or two."""
        shutil.rmtree(self._folder / job_id, ignore_errors=True)
        self._budget.give_back(self._num_bytes.pop(job_id, 0))

    def sweep(self, job_ids: Collection[str]) -> dict[str, int]:
        """Remove the folders of all other jobs. Returns the sizes in bytes of those that stay, for `adopt`."""
        found = {}
        for entry in self._folder.iterdir() if self._folder.is_dir() else ():
            if entry.name in job_ids:
                found[entry.name] = size_of(entry)
            else:
                shutil.rmtree(entry, ignore_errors=True)
        return found

    def adopt(self, num_bytes: dict[str, int]) -> None:
        """Count folders from earlier runs of the server, even if they exceed the budget."""
        self._num_bytes |= num_bytes
        self._budget.num_bytes += sum(num_bytes.values())


def size_of(folder: Path) -> int:
    """Bytes in all files below the folder."""
    return sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file())
