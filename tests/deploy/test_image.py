"""The Dockerfile is sound, and the commands in it are those that work."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import httpx
import pytest

from service.settings.reader import read_settings
from service.settings.settings import Settings
from tests.certificates import make_certificate
from tests.deploy.deployment import (
    DOCKERFILE,
    ROOT,
    ROUTER_DOCKERFILE,
    environment_of_the_image,
    health_check_command,
    services,
)
from tests.deploy.health_check import check_health
from tests.e2e.server_process import ServerProcess, write_dummy_folder

EXAMPLE = b'{"prompt": "Say a word.", "completion": " Water."}\n'
LINES = DOCKERFILE.read_text().replace("\\\n", " ").splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def stages() -> dict[str, list[str]]:
    """Instructions by stage, those of the stage that it is built on first."""
    built: dict[str, list[str]] = {}
    for line in LINES:
        if line.startswith("FROM"):
            _, base, _, name = line.split()
            lines = built[name] = [*built.get(base, [])]
        elif built and not line.startswith("#"):
            lines.append(line)
    return built


def test_the_linter_finds_nothing():
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, DOCKERFILE, ROUTER_DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_last_target_is_the_default_and_for_gpus():
    assert [*stages()][-2:] == ["cpu", "cuda"]
    assert any("gcc libc6-dev" in line for line in stages()["cuda"]), "triton compiles when it runs"
    assert not any(line.startswith("RUN apt-get") for line in stages()["cpu"])


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_target_runs_as_somebody_who_is_not_root_and_starts_the_service(target: str):
    lines = stages()[target]
    assert [line for line in lines if line.startswith("USER")] == ["USER 1000"]
    (entry_point,) = [json.loads(line.removeprefix("ENTRYPOINT ")) for line in lines if line.startswith("ENTRYPOINT")]
    assert entry_point == ["headrace", "serve"]
    assert entry_point[0] in PROJECT["project"]["scripts"]
    volumes = [json.loads(line.removeprefix("VOLUME ")) for line in lines if line.startswith("VOLUME")]
    image = environment_of_the_image()
    assert volumes == [[image["TRITON_CACHE_DIR"], image["HF_HOME"], image["HEADRACE_DATA_DIR"]]]


def test_the_image_holds_what_it_copies_and_nothing_else():
    copies = [line.split() for line in LINES if line.startswith("COPY") and "--from" not in line]
    copied = {name for words in copies for name in words[1:-1]}
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignore[1] == "*"
    assert {line.removeprefix("!") for line in ignore if line.startswith("!")} == copied
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= copied


def test_everything_that_others_built_is_pinned_by_digest():
    (base,) = [line.removeprefix("ARG BASE=") for line in LINES if line.startswith("ARG BASE=")]
    assert all(line.split()[1] in {"${BASE}", *stages()} for line in LINES if line.startswith("FROM"))
    others = [service["image"] for service in services().values() if not service["image"].startswith("headrace:")]
    assert f"ARG BASE={base}" in ROUTER_DOCKERFILE.read_text().splitlines()
    for image in (base, *others):
        assert re.fullmatch(r"[\w/]+:[\w.-]+@sha256:[0-9a-f]{64}", image), image


def test_the_image_for_cpus_has_no_triton_and_serves_and_trains_without_it(tmp_path: Path):
    flags = ["--device", "cpu", "--enable-finetuning", "--data-dir", str(tmp_path / "data")]
    module = "tests.deploy.without_triton"
    with ServerProcess(*flags, "--kv-cache-memory", "64MiB", module=module, executed=True) as server:
        body = {"model": "headrace-quickstart", "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).status_code == 200
        files = {"file": ("data.jsonl", EXAMPLE * 4), "purpose": (None, "fine-tune")}
        uploaded = httpx.post(f"{server.url}/v1/files", files=files).json()
        order = {"model": "headrace-quickstart", "training_file": uploaded["id"], "hyperparameters": {"n_epochs": 1}}
        job = httpx.post(f"{server.url}/v1/fine_tuning/jobs", json=order).json()
        deadline_s = time.monotonic() + 60
        while job["status"] not in {"succeeded", "failed"}:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
            job = httpx.get(f"{server.url}/v1/fine_tuning/jobs/{job['id']}").json()
        assert job["status"] == "succeeded", job["error"]


def test_what_the_image_sets_are_settings(monkeypatch: pytest.MonkeyPatch):
    for variable, value in environment_of_the_image().items():
        if variable.startswith("HEADRACE_"):
            monkeypatch.setenv(variable, value)
    settings = read_settings([])
    assert settings.non_default() == {"host": "0.0.0.0", "data_dir": "/data"}
    assert f"EXPOSE {Settings.model_fields['port'].default}" in LINES


def test_the_health_check_is_in_the_image():
    _, file = health_check_command()
    assert f"COPY deploy/{Path(file).name} {file}" in LINES


def test_healthy_while_it_serves_unhealthy_when_it_hangs_or_is_gone(tmp_path: Path):
    flags = "--load-format dummy --device cpu --kv-cache-memory 8MiB".split()
    with ServerProcess(str(write_dummy_folder(tmp_path / "dummy")), *flags) as server:
        assert check_health(server.url) == 0
        server.process.send_signal(signal.SIGSTOP)
        started_s = time.monotonic()
        assert check_health(server.url) == 1
        within_s = float(re.search(r"--timeout=(\d+)s", DOCKERFILE.read_text())[1])
        assert time.monotonic() - started_s < within_s + 5, "the check itself gives up, before it is killed"
        server.process.send_signal(signal.SIGCONT)
        assert check_health(server.url) == 0
        server.terminate()
        assert server.wait(30) == 0
        assert check_health(server.url) == 1


@pytest.mark.parametrize("how", ["unix socket", "TLS"])
def test_the_health_check_goes_where_the_service_listens(tmp_path: Path, how: str):
    file, key = make_certificate(tmp_path) if how == "TLS" else (None, None)
    where = {"uds": tmp_path / "socket"} if file is None else {"ssl_certfile": file, "ssl_keyfile": key}
    flags = [f"--{name}={path}" for name, path in where.items()]
    folder = str(write_dummy_folder(tmp_path / "dummy"))
    with ServerProcess(
        folder, "--load-format", "dummy", "--device", "cpu", "--kv-cache-memory", "8MiB", *flags
    ) as server:
        assert server.url.startswith("unix:" if file is None else "https:")
        told = {f"HEADRACE_{name.upper()}": str(path) for name, path in where.items()}
        assert check_health(server.url, told) == 0
        server.terminate()
        assert server.wait(30) == 0
        assert check_health(server.url, told) == 1
