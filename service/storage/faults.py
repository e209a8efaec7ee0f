"""Errors of the disk and of SQLite, converted to errors that a client may see."""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from service.core.rare_warning import RareWarning
from service.errors import RequestError, StorageFull, StorageUnavailable

_logger = logging.getLogger(__name__)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_OURS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError)
_RETRY_AFTER_S = 5.0


class StorageFaults:
    """Any thread. The log gets the reason with its path; the client does not."""

    def __init__(self) -> None:
        self._unusable = RareWarning(_logger, "the data directory cannot be used: %s (times: %d)")

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Errors of the operating system or of SQLite inside become StorageFull or StorageUnavailable. Errors in our
        own statements, and broken constraints, are passed on."""
        try:
            yield
        except OSError as fault:
            raise _full() if fault.errno in _FULL else self.unusable(fault) from fault
        except sqlite3.Error as fault:
            error = self._of_sqlite(fault)
            if error is None:
                raise
            raise error from fault

    def unusable(self, reason: object) -> StorageUnavailable:
        """reason: for the log only."""
        self._unusable.tell(reason)
        return StorageUnavailable("The server's data directory cannot be used.", retry_after_s=_RETRY_AFTER_S)

    def _of_sqlite(self, fault: sqlite3.Error) -> RequestError | None:
        code = getattr(fault, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if isinstance(fault, _OURS) or code == sqlite3.SQLITE_ERROR:
            return None
        if code == sqlite3.SQLITE_FULL:
            return _full()
        if code in _BUSY:
            return StorageUnavailable("The server's database is busy.", retry_after_s=_RETRY_AFTER_S)
        return self.unusable(fault)


def _full() -> StorageFull:
    return StorageFull("The server's disk is full.")
