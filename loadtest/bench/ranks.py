"""Processes that run as ranks on this host. Imports no torch."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path


def run_ranks(num_ranks: int, work: Callable[..., None], *args: object) -> int:
    """Run work(rank, meeting_point, *args) in a new process for each rank. meeting_point: path of a file that does not
    exist yet. Returns 0, or the largest of the failed ranks' exit statuses without their signs."""
    with tempfile.TemporaryDirectory() as folder:
        shared = str(Path(folder) / "meeting-point"), *args
        context = multiprocessing.get_context("spawn")
        ranks = [context.Process(target=work, args=(rank, *shared)) for rank in range(num_ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    return max(abs(process.exitcode or 0) for process in ranks)
