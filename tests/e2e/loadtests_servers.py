"""Servers that `loadtest` starts, forked where tests look at what becomes of them and not at how they start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from loadtest import server_process
from tests.e2e.forked_process import ForkedProcess, fork_server
from tests.e2e.server_process import HAS_GPU, without_settings


def _start(
    command: Sequence[str], *, stdout: BinaryIO, stderr: int, env: Mapping[str, str] | None
) -> ForkedProcess | subprocess.Popen[bytes]:
    if HAS_GPU or env is None or list(command[:3]) != [sys.executable, "-m", "service"]:
        return subprocess.Popen(command, stdout=stdout, stderr=stderr, env=env)
    assert stderr == subprocess.STDOUT
    return fork_server(without_settings(env)).start_writing(command[2:], stdout.fileno())


def fork_them(monkeypatch: pytest.MonkeyPatch) -> None:
    of_subprocess = {name: getattr(subprocess, name) for name in ("STDOUT", "TimeoutExpired")}
    monkeypatch.setattr(server_process, "subprocess", SimpleNamespace(Popen=_start, **of_subprocess))
