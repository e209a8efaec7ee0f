"""The image for CPUs, really built: by buildah, which needs no daemon, in a folder that the test throws away.

The base is the Dockerfile's, where a registry of images is in reach, and else a Debian by debootstrap. Packages come
from where this machine's own pip has them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

from tests.deploy.deployment import DOCKERFILE, ROOT

DEBIAN, SUITE = "localhost/debian-with-python", "bookworm"
"""Of that Python, torch for CPUs is in the lock."""
_BUILD_S, _FETCH_S = 1800, 600


class NoBaseError(Exception):
    """Neither a registry of images is in reach nor debootstrap there; the message says what each said."""


class BuildahError(Exception):
    """It failed, or was not done in time; the message has the end of what it said."""


@dataclass(frozen=True, slots=True)
class Builder:
    """buildah, whose images and containers are all below `folder`."""

    folder: Path

    def __call__(self, *words: str, timeout_s: float = _FETCH_S) -> str:
        """What it prints. Raises BuildahError."""
        storage = ["--storage-driver=vfs", f"--root={self.folder}/images", f"--runroot={self.folder}/running"]
        command = ["buildah", *storage, *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired as fault:
            raise BuildahError(str(fault)) from fault
        if done.returncode:
            raise BuildahError(f"buildah {words[0]}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        return done.stdout.strip()

    def base(self) -> str:
        """Its name. Raises NoBaseError."""
        (pinned,) = [
            line.removeprefix("ARG BASE=") for line in DOCKERFILE.read_text().splitlines() if "ARG BASE" in line
        ]
        try:
            self("pull", f"docker.io/library/{pinned}", timeout_s=_FETCH_S)
            return f"docker.io/library/{pinned}"
        except BuildahError as fault:
            return self._debian(because=str(fault))

    def build(self, base: str) -> str:
        """The target `cpu`; its name."""
        settings, mounted = _pip_of_this_machine(self.folder)
        volumes = [f"--volume={path}:{path}:ro" for path in mounted]
        index = [] if base != DEBIAN else ["--build-arg=CPU_TORCH_INDEX="]
        how = ["--isolation=chroot", "--target=cpu", f"--build-arg=BASE={base}", *index]
        where = [*volumes, f"--volume={settings}:/etc/pip.conf:ro", "--tag=headrace:cpu", str(ROOT)]
        self("build", *how, *where, timeout_s=_BUILD_S)
        return "localhost/headrace:cpu"

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """Its root."""
        container = self("from", "--pull-never", image)
        try:
            yield Path(self("mount", container))
        finally:
            self("rm", container)

    def _debian(self, because: str) -> str:
        root = self.folder / "debian"
        packages = "--include=python3,python3-venv,ca-certificates"
        command = ["debootstrap", "--variant=minbase", packages, SUITE, str(root)]
        try:
            subprocess.run(command, capture_output=True, check=True, timeout=_FETCH_S)
        except (OSError, subprocess.SubprocessError) as fault:
            raise NoBaseError(f"{because}; {fault}") from fault
        container = self("from", "scratch")
        self("add", "--quiet", container, str(root), "/")
        self("commit", "--rm", "--quiet", container, DEBIAN)
        return DEBIAN


def _pip_of_this_machine(folder: Path) -> tuple[Path, list[str]]:
    """A file with its settings, of whatever files and variables they are, and the local files that they name."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = dict(line.split("=", 1) for line in listed.stdout.splitlines())
    settings = {name.removeprefix("global.").removeprefix(":env:."): ast.literal_eval(found[name]) for name in found}
    file = folder / "pip.conf"
    file.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
    paths = set()
    for name, value in settings.items():
        for word in value.split():
            path = Path(urlparse(word).path)
            if path.is_absolute() and path.exists():
                paths.add(str(path.parent if name.endswith("index-url") else path))  # files lie beside an index
    return file, sorted(paths)
