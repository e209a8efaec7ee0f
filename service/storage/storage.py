"""All storage in one object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from service.storage.data_folder import DataFolder
from service.storage.database import Database, Schema
from service.storage.faults import StorageFaults
from service.storage.file_store import FileStore
from service.storage.file_table import FILES
from service.storage.storage_budget import StorageBudget


class Storage:
    """Made without touching the disk. Event loop.

    folder: the data directory. max_bytes: of all files. schemas: of the tables besides that of the files.
    """

    def __init__(self, folder: Path, max_bytes: int, schemas: Sequence[Schema] = ()) -> None:
        self.faults = faults = StorageFaults()
        self.folder = folder
        self.budget = StorageBudget(max_bytes)
        self.database = Database(DataFolder(folder), (FILES, *schemas), faults)
        self.files = FileStore(self.database, folder / "files", self.budget, faults)

    async def close(self) -> None:
        """The last call; later ones raise StorageUnavailable."""
        self.files.close()
        await self.database.close()
