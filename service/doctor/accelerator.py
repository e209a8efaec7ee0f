"""The GPU and what it needs: driver, torch, Triton, a C compiler. On a CPU: only torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from service.doctor.finding import Finding, fault, ok, warning
from service.settings.settings import Settings

GPU = Path("/dev/nvidiactl")
_DRIVER = Path("/proc/driver/nvidia/version")
_GIBIBYTE = 1 << 30
_PROGRAM = "#include <Python.h>\n#include <stdlib.h>\nint answer(void) { return 42; }\n"
_TO_COMPILE_S = 30


def check_torch(settings: Settings) -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:
        yield fault("torch", f"cannot be imported: {error}", "install it anew: pip install --force-reinstall torch")
        return
    cuda = torch.version.cuda
    found = f"{torch.__version__}, {f'for CUDA {cuda}' if cuda else 'without CUDA'}"
    if not GPU.exists() or settings.device == "cpu":
        yield ok("torch", found)
    elif cuda is None:
        yield fault("torch", f"{found}, though there is a GPU", "install torch's build for CUDA, or say --device cpu")
    elif not torch.cuda.is_available():
        mend = f"install a driver that has CUDA {cuda}; in a container, run it with the NVIDIA container toolkit"
        yield fault("torch", f"{found}, and cannot use the GPU", mend)
    else:
        yield ok("torch", found)


def check_gpu(settings: Settings) -> Iterator[Finding]:
    if not GPU.exists():
        yield _no_gpu(settings)
        return
    yield ok("driver", _driver_version())
    try:
        import torch

        devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    except Exception:  # `check_torch` reports it
        return
    for index in devices:
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found = f"{properties.name} (compute capability {properties.major}.{properties.minor}),"
        found += f" {free / _GIBIBYTE:.1f} of {total / _GIBIBYTE:.1f} GiB free"
        if free < settings.gpu_memory_utilization * total:
            mend = "end what else uses it (nvidia-smi shows who), or lower --gpu-memory-utilization"
            yield warning(f"gpu {index}", found, mend)
        else:
            yield ok(f"gpu {index}", found)


def _no_gpu(settings: Settings) -> Finding:
    if settings.device == "cuda":
        return fault("gpu", "none", "install NVIDIA's driver; in a container, pass the GPU on; or say --device cpu")
    return ok("gpu", "none; the CPU computes")


def _driver_version() -> str:
    try:
        found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\S+)", _DRIVER.read_text())
    except OSError:
        found = None
    return found[1] if found else "of an unknown version"


def check_compiler(settings: Settings) -> Iterator[Finding]:
    """Triton compiles some C code when it first launches a kernel."""
    if not GPU.exists() or settings.device == "cpu":
        yield ok("triton", "is for GPUs only")
        return
    try:
        yield ok("triton", version("triton"))
    except PackageNotFoundError:
        yield fault("triton", "is not installed", "pip install triton")
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("clang", "gcc", "cc")), None)
    mend = "install one with its headers: apt-get install gcc libc6-dev python3-dev"
    if compiler is None:
        yield fault("compiler", "no C compiler is found (CC, clang, gcc), and Triton needs one", mend)
    elif complaint := compile_complaint(compiler):
        yield fault("compiler", f"{compiler} cannot compile for Python: {complaint}", mend)
    else:
        yield ok("compiler", compiler)


def compile_complaint(compiler: str) -> str:
    """The compiler's output for a program that includes Python's and the C library's headers; empty if it compiles."""
    include = sysconfig.get_path("include")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "answer.c"
        source.write_text(_PROGRAM)
        command = [*compiler.split(), "-shared", "-fPIC", f"-I{include}", str(source), "-o", f"{folder}/answer.so"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TO_COMPILE_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return next((line for line in said if "error" in line), said[0]) if done.returncode else ""
