"""Environment variables that the process's libraries read when they are loaded: set before, unless already set.

Standard library only. To be used before torch is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_SPINS = 10_000  # about a tenth of a millisecond: the gap between two operations, not between two iterations
_HUGE_PAGES = "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"  # one arena, since those of threads use small pages
_GPU = Path("/dev/nvidiactl")
_CACHED_COMPUTATIONS = 128  # about half a megabyte each


def limited_spinning(environment: Mapping[str, str]) -> dict[str, str]:
    """Makes OpenMP threads without work sleep after a short while.

    libgomp reads this when it is loaded. By default a thread spins for milliseconds; meanwhile the event loop, a client
    or another process on the same cores waits, and then so does the operation that the spinning waits for. Measured on
    2 cores, 135M model over HTTP, output tokens/s by default / limited: one stream on an otherwise idle machine 58 /
    51, sixteen 337 / 355; beside two busy processes one stream 2 to 20 / 40 to 47, sixteen 13 / 300.
    """
    is_set = "OMP_WAIT_POLICY" in environment or "GOMP_SPINCOUNT" in environment
    return {} if is_set else {"GOMP_SPINCOUNT": str(_SPINS)}


def huge_pages(environment: Mapping[str, str], libc: str | None, has_gpu: bool) -> dict[str, str]:
    """Makes malloc ask for huge pages: a step on a CPU reads all weights, which is faster with them.

    libc: its name and version, from `libc_version`; glibc can do it since 2.35. Measured on one core, 135M model in
    bf16, a decode step of 1 row 29 -> 25 ms, of 4 rows 36 -> 32, of 16 rows 68 -> 63.
    """
    name, _, version = (libc or "").partition(" ")
    if has_gpu or name != "glibc" or "GLIBC_TUNABLES" in environment:
        return {}
    major, minor = version.split(".")[:2]
    return {"GLIBC_TUNABLES": _HUGE_PAGES} if (int(major), int(minor)) >= (2, 35) else {}


def single_threaded_numpy(environment: Mapping[str, str], has_gpu: bool) -> dict[str, str]:
    """Makes numpy's BLAS start no threads beside a GPU, where it is not used.

    By default it starts one per core when numpy is imported, and each spins for a while. Measured on 16 cores: 2 s of
    CPU time, and 0.1 s of the start.
    """
    return {"OPENBLAS_NUM_THREADS": "1"} if has_gpu and "OPENBLAS_NUM_THREADS" not in environment else {}


def bounded_caches(environment: Mapping[str, str]) -> dict[str, str]:
    """Makes torch's linears on a CPU cache few batch shapes.

    oneDNN and the layer above it each cache what they prepared for a shape, 1,024 of them, and served batches have
    hundreds of sizes: memory grew with the traffic, by 650 MB in 5,000 requests to a model of 10 MB. Measured on one
    core, linears of a 135M model, 200 batch sizes in turn: 17 ms a step and 509 MB with 1,024, 20 ms and 94 MB with
    128; one size again and again: 12.4 and 12.7 ms.
    """
    names = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    return {name: str(_CACHED_COMPUTATIONS) for name in names if name not in environment}


def has_gpu() -> bool:
    """Whether NVIDIA's driver is there and shows this process a GPU."""
    return _GPU.exists()


def libc_version() -> str | None:
    """ "glibc 2.36", or None where another library is."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):
        return None


def restart_prepared() -> None:
    """Executes this process's program again with all variables set; returns if they are. The process id stays.

    malloc reads its setting before any line of Python runs, so the program is executed a second time (some 20 ms).
    """
    added = {
        **limited_spinning(os.environ),
        **single_threaded_numpy(os.environ, has_gpu()),
        **bounded_caches(os.environ),
        **huge_pages(os.environ, libc_version(), has_gpu()),
    }
    if added:
        if sys.stdout is not None:  # it was closed when the process began
            sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})
