"""The folder that all storage lies in. One server at a time has it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from service.errors import StorageUnavailable

_LOCK = "lock"
_PRIVATE = 0o700
_RETRY_AFTER_S = 30.0


class DataFolder:
    """path: made by the first `take`, for nobody else to read. Thread of the database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def take(self) -> None:
        """Have the folder until `give_back`, or the process's end, however it ends. StorageUnavailable if another
        process has it; OSError if it cannot be made or written to."""
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
    """What was renamed or made in the folder stays so if the machine stops now."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
