"""The host: Python, cores, memory, open files, the address, the folders that are written."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from service.doctor.finding import Finding, fault, ok, warning
from service.errors import ConfigError
from service.process.open_files import connections_allowed
from service.settings.settings import Settings

_GIBIBYTE = 1 << 30
_OLDEST_PYTHON = (3, 11)


def check_python(settings: Settings) -> Iterator[Finding]:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < _OLDEST_PYTHON:
        yield fault("python", found, "install Python 3.11 or newer")
    else:
        yield ok("python", found)


def check_cores(settings: Settings) -> Iterator[Finding]:
    from service.runner.device import available_cores

    cores = available_cores()
    if cores == 1:
        mend = "give the process two cores or more: the engine and the event loop have a thread each"
        yield warning("cores", "1", mend)
    else:
        yield ok("cores", str(cores))


def check_memory(settings: Settings) -> Iterator[Finding]:
    from service.runner.memory_profile import cpu_memory

    total, available = cpu_memory()
    found = f"{available / _GIBIBYTE:.1f} of {total / _GIBIBYTE:.1f} GiB are free"
    if available < _GIBIBYTE:
        yield warning("memory", found, "free some, or raise the container's limit: libraries alone take half a GiB")
    else:
        yield ok("memory", found)


def check_open_files(settings: Settings) -> Iterator[Finding]:
    mend = "raise the limit: `ulimit -n 65536`, LimitNOFILE= under systemd, `ulimits` under compose"
    wanted = settings.max_connections
    try:
        allowed = connections_allowed(wanted)
    except ConfigError as error:
        yield fault("open files", str(error), mend)
        return
    if allowed < wanted:
        yield warning("open files", f"enough for {allowed} connections; max-connections is {wanted}", mend)
    else:
        yield ok("open files", f"enough for {wanted} connections")


def check_address(settings: Settings) -> Iterator[Finding]:
    if settings.uds is not None:
        yield _path_of_socket(settings.uds)
        return
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    shown = f"{settings.host} port {settings.port}"
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            yield fault("address", f"{shown}: {error.strerror}", "end what listens there, or choose another --port")
        else:
            yield ok("address", f"{shown} is free")


def _path_of_socket(path: Path) -> Finding:
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        return fault("address", f"{path} is there, and no socket", "choose another --uds")
    if not os.access(path.parent, os.W_OK):
        return fault("address", f"{path.parent} cannot be written to", "make it writable, or choose another --uds")
    return ok("address", f"{path} can be had")


def check_folders(settings: Settings) -> Iterator[Finding]:
    data, most = settings.data_folder(), settings.max_storage_bytes()
    yield _written_to("data folder", data, "--data-dir", most)
    for variable in ("TRITON_CACHE_DIR", "HF_HOME"):
        if value := os.environ.get(variable):
            yield _written_to(variable, Path(value), variable, 0)


def _written_to(subject: str, folder: Path, named_by: str, wanted_bytes: int) -> Finding:
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        return fault(subject, f"{folder} cannot be written to", f"make it writable for this user, or set {named_by}")
    free = shutil.disk_usage(there).free
    found = f"{folder}, {free / _GIBIBYTE:.1f} GiB free"
    if free < wanted_bytes:
        mend = f"make room, or lower --max-storage-gib, which allows {wanted_bytes / _GIBIBYTE:.1f} GiB"
        return warning(subject, found, mend)
    return ok(subject, found)
