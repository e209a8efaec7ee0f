"""Kernels that all ranks of a stage need are compiled once: by the first rank. The others find them in Triton's cache,
which the ranks of a host share."""

from __future__ import annotations

from collections.abc import Callable

from kernels.compile_ahead import compile_noted, note_launches
from service.layers.tensor_parallel import TensorParallel


def compile_for_ranks(launch: Callable[[], object], parallel: TensorParallel) -> None:
    """Compile the kernels that `launch` launches (kernels/compile_ahead.py). All ranks call it, with launches that
    exchange alike. It returns on each rank as soon as that rank's kernels are loaded."""
    noted = note_launches(launch)
    if parallel.rank > 0:
        parallel.least(0)  # waits for rank 0
    compile_noted(noted)
    if parallel.rank == 0:
        parallel.least(0)
