"""Processes that compile kernels for a GPU, begun at the very start: they import what they need beside this process."""

from __future__ import annotations

import os

from kernels import compile_processes
from service.process.environment import has_gpu
from service.settings.settings import Settings

_MOST, _LEAST = 16, 4
"""Processes, of 30 to 70 MB each. Some fifty kernels take a third of a second each, and the longest of them one; on
fewer cores, imports beside the service's own would hold it up."""


def start_compiling_early(settings: Settings) -> None:
    """On the main thread, before torch is imported. Does nothing where no GPU is served from, or the cores are few."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if settings.device != "cpu" and has_gpu() and num_cores >= _LEAST:
        compile_processes.start(min(_MOST, num_cores))


def end_compiling_early() -> None:
    """All that the start needs is compiled."""
    compile_processes.stop()
