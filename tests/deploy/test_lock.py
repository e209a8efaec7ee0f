"""The locks of the image's dependencies: complete, hashed, and what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.deploy.deployment import DEPLOY, DOCKERFILE, ROOT

IMAGE = DEPLOY / "image"
FILES = {"cpu": ("cpu-torch.txt", "cpu.txt"), "cuda": ("cuda.txt",), "wheel": ("build.txt",)}
EXTRAS = ("otel", "kv-events")
LINUX = {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.12"}


def pinned(target: str) -> dict[str, Version]:
    """Version by name."""
    text = "".join((IMAGE / name).read_text() for name in FILES[target])
    entries = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    found = {}
    for entry in entries:
        name, version, *hashes = re.split(r"==|\s+--hash=", entry.strip())
        assert name not in found
        assert hashes, f"{name}: pip asks for a hash"
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), name
        found[name] = Version(version)
    return found


def asked_for(target: str) -> list[Requirement]:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = told["project"]["optional-dependencies"]
    lines = [*told["project"]["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]
    if target == "wheel":
        lines = told["build-system"]["requires"]
    return [each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate(LINUX)]


@pytest.mark.parametrize("target", FILES)
def test_a_lock_is_within_what_the_project_asks_for(target: str):
    versions = pinned(target)
    left_out = {"triton"} if target == "cpu" else set()
    for requirement in asked_for(target):
        if requirement.name not in left_out:
            assert requirement.specifier.contains(versions[requirement.name]), f"{requirement}: run make lock"


def test_the_cpus_has_nothing_of_a_gpu_and_else_what_the_other_has():
    cpu, cuda = pinned("cpu"), pinned("cuda")
    assert cpu["torch"].local == "cpu"
    for_gpus = {name for name in cuda if name.startswith(("nvidia-", "cuda-"))} | {"triton"}
    assert cuda.keys() - cpu.keys() == for_gpus
    assert cpu.keys() <= cuda.keys()
    assert len(for_gpus) > 10


def test_the_dockerfile_installs_the_locks_and_nothing_without_a_hash():
    text = DOCKERFILE.read_text()
    stages = {"cpu": "cpu-dependencies", "cuda": "cuda-dependencies", "wheel": "wheel"}
    installed = []
    for target, name in stages.items():
        stage = text.partition(f"AS {name}\n")[2].partition("\nFROM")[0]
        installed += re.findall(r"pip install --no-deps --require-hashes -r (\S+)", stage)
        assert all(f"deploy/image/{file}" in stage for file in FILES[target])
    assert sorted(installed) == sorted(file for files in FILES.values() for file in files)
    others = [line for line in text.splitlines() if "pip install" in line and "--require-hashes" not in line]
    assert all("--no-index" in line for line in others), "the service's own wheel"


def test_torch_for_cpus_is_the_version_whose_needs_were_locked():
    (line,) = [line for line in (IMAGE / "without-gpu.txt").read_text().splitlines() if line.startswith("torch==")]
    assert pinned("cpu")["torch"].public == line.removeprefix("torch==")
