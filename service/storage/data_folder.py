"""The folder of all storage. It belongs to one server at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from service.errors import StorageUnavailable

_LOCK = "lock"
_PRIVATE = 0o700
_RETRY_AFTER_S = 30.0


class DataFolder:
    """path: created by the first `take`, readable by its owner only. Thread of the database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def take(self) -> None:
        """Locks the folder until `give_back`, or until the process ends, in whatever way. StorageUnavailable if another
        process has it; OSError if it cannot be created or written."""
        if self._lock is not None:
            return
        self.path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StorageUnavailable(
                "Another server uses this server's data directory; give each its own (--data-dir).",
                retry_after_s=_RETRY_AFTER_S,
            ) from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def give_back(self) -> None:
        """Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sync_folder(folder: Path) -> None:
    """Makes renames and new files in the folder durable, should the machine stop now."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
