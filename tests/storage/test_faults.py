from __future__ import annotations

import errno
import sqlite3

import pytest

from service.errors import StorageFull, StorageUnavailable
from service.storage.faults import StorageFaults


@pytest.mark.parametrize(
    ("fault", "becomes"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "secret"), StorageFull),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "secret"), StorageFull),
        (OSError(errno.EROFS, "Read-only file system", "secret"), StorageUnavailable),
        (PermissionError(errno.EACCES, "Permission denied", "secret"), StorageUnavailable),
        (OSError(errno.EIO, "Input/output error", "secret"), StorageUnavailable),
        (sqlite3.ProgrammingError("a mistake of ours"), sqlite3.ProgrammingError),
        (sqlite3.IntegrityError("a mistake of ours"), sqlite3.IntegrityError),
        (ValueError("of the work itself"), ValueError),
    ],
)
def test_what_becomes_of_a_fault(fault: Exception, becomes: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(becomes) as raised, StorageFaults().translated():
        raise fault
    if becomes is StorageUnavailable:
        assert "secret" not in str(raised.value)
        assert "secret" in caplog.text
