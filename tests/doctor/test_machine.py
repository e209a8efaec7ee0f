from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from service.doctor import machine
from service.doctor.finding import Verdict
from service.doctor.machine import check_address, check_folders, check_memory, check_open_files, check_python
from service.errors import ConfigError
from service.settings.settings import Settings


def test_a_python_that_is_too_old_is_a_fault(monkeypatch: pytest.MonkeyPatch):
    assert [f.verdict for f in check_python(Settings())] == [Verdict.OK]
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    assert [f.verdict for f in check_python(Settings())] == [Verdict.FAULT]


def test_an_address_that_is_taken_is_a_fault_and_a_free_one_is_left_free():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        (taken,) = check_address(Settings(port=port))
        assert (taken.verdict, "in use" in taken.found) == (Verdict.FAULT, True)
    for _ in range(2):
        assert [f.verdict for f in check_address(Settings(port=port))] == [Verdict.OK]
    (elsewhere,) = check_address(Settings(host="192.0.2.1"))
    assert elsewhere.verdict is Verdict.FAULT


def test_a_path_to_listen_on(tmp_path: Path):
    assert [f.verdict for f in check_address(Settings(uds=tmp_path / "socket"))] == [Verdict.OK]
    (tmp_path / "file").write_text("")
    assert [f.verdict for f in check_address(Settings(uds=tmp_path / "file"))] == [Verdict.FAULT]


def test_few_open_files_are_a_warning_and_too_few_a_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "connections_allowed", lambda wanted: 500)
    (few,) = check_open_files(Settings())
    assert (few.verdict, "500" in few.found) == (Verdict.WARNING, True)

    def refuse(wanted: int) -> int:
        raise ConfigError("open files: too few")

    monkeypatch.setattr(machine, "connections_allowed", refuse)
    assert [f.verdict for f in check_open_files(Settings())] == [Verdict.FAULT]


def test_folders_are_looked_at_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("")
    data, cache = check_folders(Settings(data_dir=tmp_path / "data" / "deep", max_storage_gib=0.001))
    assert (data.verdict, cache.verdict) == (Verdict.OK, Verdict.FAULT)
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]
    (full, _) = check_folders(Settings(data_dir=tmp_path, max_storage_gib=1e9))
    assert full.verdict is Verdict.WARNING


def test_little_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    assert [f.verdict for f in check_memory(Settings())] == [Verdict.OK]
    monkeypatch.setattr("service.runner.memory_profile.cpu_memory", lambda: (1 << 30, 1 << 29))
    assert [f.verdict for f in check_memory(Settings())] == [Verdict.WARNING]
