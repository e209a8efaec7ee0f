from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from service.errors import StorageUnavailable
from service.storage.data_folder import DataFolder, sync_folder

TAKE = "import sys, pathlib; from service.storage.data_folder import DataFolder\n"
TAKE += "DataFolder(pathlib.Path(sys.argv[1])).take(); print('taken', flush=True); sys.stdin.read()"


def test_another_process_has_it_until_it_ends_however_it_ends(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    command = [sys.executable, "-c", TAKE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"taken\n"
        with pytest.raises(StorageUnavailable):
            folder.take()
        other.kill()
        other.wait()
    folder.take()
    folder.take()
    folder.give_back()
    folder.give_back()
    again = DataFolder(tmp_path)
    again.take()
    again.give_back()


def test_a_folder_is_synced(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(NotADirectoryError):
        (tmp_path / "file").write_text("")
        sync_folder(tmp_path / "file")
