"""The service runs on a root that it cannot write to, as compose and Kubernetes run it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.deploy.deployment import environment_of_the_image
from tests.deploy.read_only_root import VOLUMES, confined
from tests.e2e.server_process import ServerProcess, write_dummy_folder

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "model", "prompt": "a"}}\n'


def bubblewrap_works() -> bool:
    """Where it is there, and may make namespaces."""
    return (
        shutil.which("bwrap") is not None and subprocess.run(["bwrap", "--ro-bind", "/", "/", "true"]).returncode == 0
    )


def test_its_folders_are_those_that_the_image_names():
    image = environment_of_the_image()
    assert VOLUMES.keys() == {name for name in image if name.endswith(("_DIR", "HF_HOME")) and "PIP" not in name}


@pytest.mark.load
@pytest.mark.skipif(not bubblewrap_works(), reason="there is no bubblewrap, or it may not make namespaces")
def test_it_serves_and_keeps_files_and_writes_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    volumes, model = tmp_path / "volumes", write_dummy_folder(tmp_path / "model")
    volumes.mkdir()
    tried = confined(volumes, model, "sh", "-c", "touch /usr/a || touch /mnt/a || touch /mnt/model/a")
    assert subprocess.run(tried, capture_output=True).returncode != 0
    assert subprocess.run(confined(volumes, model, "touch", "/mnt/volumes/a", "/tmp/a")).returncode == 0
    monkeypatch.setenv("VOLUMES", str(volumes))
    monkeypatch.setenv("MODEL", str(model))
    flags = "--load-format dummy --device cpu --dtype float32 --kv-cache-memory 8MiB --enable-finetuning"
    with ServerProcess(*flags.split(), module="tests.deploy.read_only_root", executed=True) as server:
        assert not (tmp_path / "model" / "a").exists()
        body = {"model": "model", "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
        files = {"file": ("data.jsonl", LINE), "purpose": (None, "batch")}
        kept = httpx.post(f"{server.url}/v1/files", files=files).json()
        assert httpx.get(f"{server.url}/v1/files/{kept['id']}/content").content == LINE
        pid = server.process.pid
        (confined_pid,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(confined_pid), signal.SIGTERM)
        assert server.wait(60) == 0, "bubblewrap ends as what it runs"
    assert not [line for line in server.log if "Read-only file system" in line]
    assert any((volumes / "data").iterdir())
