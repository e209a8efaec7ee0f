"""Processes that compile GPU kernels, started as early as possible: they import what they need while this process
does."""

from __future__ import annotations

import os

from kernels import compile_processes
from service.process.environment import has_gpu
from service.settings.settings import Settings

_MOST, _LEAST = 16, 4
"""Processes, of 30 to 70 MB each. Some fifty kernels take a third of a second each, the longest one second. On fewer
cores their imports would slow down those of the service."""


def start_compiling_early(settings: Settings) -> None:
    """To be called on the main thread, before torch is imported. Does nothing without a GPU, or with few cores."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if settings.device != "cpu" and has_gpu() and num_cores >= _LEAST:
        compile_processes.start(min(_MOST, num_cores))


def end_compiling_early() -> None:
    """To be called when everything that the start needs is compiled."""
    compile_processes.stop()
