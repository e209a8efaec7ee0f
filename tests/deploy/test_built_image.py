"""The image for CPUs as buildah builds it from the Dockerfile and its locks: its size, and that it serves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.image_builder import Builder, NoBaseError
from tests.deploy.image_root import in_image
from tests.deploy.test_read_only_root import bubblewrap_works
from tests.e2e.server_process import ServerProcess

pytestmark = [
    pytest.mark.load,
    pytest.mark.skipif(shutil.which("buildah") is None or os.geteuid() != 0, reason="there is no buildah, or no root"),
]

MOST_BYTES = 1.6e9
OF_A_BASE_BYTES = 0.15e9
"""python:3.12-slim's, unpacked; what is built on here may be larger."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, dict[str, Any]]]:
    """Roots of the base and of the image, and the image's configuration."""
    folder = tmp_path_factory.mktemp("buildah")
    builder = Builder(folder)
    try:
        base = builder.base()
        image = builder.build(base)
        config = json.loads(builder("inspect", "--type=image", image))["OCIv1"]["config"]
        with builder.mounted(base) as base_root, builder.mounted(image) as root:
            yield base_root, root, config
    except NoBaseError as fault:
        pytest.skip(f"no image to build on: {fault}")
    finally:
        shutil.rmtree(folder)  # gigabytes, which pytest would keep


def size_bytes(root: Path) -> int:
    done = subprocess.run(["du", "--summarize", "--bytes", str(root)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def test_it_is_small_and_has_nothing_of_a_gpu(built: tuple[Path, Path, dict[str, Any]]):
    base, root, _ = built
    beside_bytes = size_bytes(root) - size_bytes(base)
    print(f"the image for CPUs takes {beside_bytes / 1e9:.2f} GB beside its base")
    assert beside_bytes + OF_A_BASE_BYTES <= MOST_BYTES
    (packages,) = (root / "opt" / "headrace" / "lib").glob("python*/site-packages")
    names = {each.name.lower() for each in packages.iterdir()}
    assert {"torch", "service", "kernels", "llguidance"} <= names
    assert not [name for name in names if name.startswith(("triton", "nvidia"))]


@pytest.mark.skipif(not bubblewrap_works(), reason="there is no bubblewrap, or it may not make namespaces")
def test_it_serves_as_its_user_on_a_root_that_is_read_only(
    built: tuple[Path, Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, root, config = built
    image = {"root": str(root), "config": config, "volumes": str(tmp_path / "volumes")}
    assert config["User"] == "1000"
    assert subprocess.run(in_image(image, "touch", "/opt/a"), capture_output=True).returncode != 0
    monkeypatch.setenv("IMAGE", json.dumps(image))
    flags = "--host 127.0.0.1 --device cpu --kv-cache-memory 64MiB"
    with ServerProcess(*flags.split(), module="tests.deploy.image_root", executed=True) as server:
        body = {"model": "headrace-quickstart", "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 4
        port = server.url.rpartition(":")[2]
        of_server = {**image, "config": {**config, "Env": [*config["Env"], f"HEADRACE_PORT={port}"]}}
        assert subprocess.run(in_image(of_server, "python", "/opt/healthcheck.py"), timeout=60).returncode == 0
        pid = server.process.pid
        (inside,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(inside), signal.SIGTERM)
        assert server.wait(60) == 0
        assert subprocess.run(in_image(of_server, "python", "/opt/healthcheck.py"), timeout=60).returncode == 1
