"""Time of every kernel but attention (kernel_cases.py), and its bandwidth as a share of a copy's.

Inputs rotate beyond the L2 cache, with at most 64 sets. For the smallest shapes these fit in the cache; but in a real
step, too, their inputs were just written. Without a GPU the reference implementations are measured, on few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from loadtest.bench.device_limits import DeviceLimits
from loadtest.bench.kernel_cases import Case, all_cases
from loadtest.bench.launch_timing import bench_device, seconds_of_launch
from loadtest.bench.report import print_table

_L2_BYTES = 60 << 20
_MAX_SETS = 64


@dataclass(frozen=True, slots=True)
class Result:
    """share: (time for moving the bytes alone) / (measured time)."""

    name: str
    rows: int
    microseconds: float
    share: float


def measure_kernels(names: Sequence[str], limits: DeviceLimits) -> list[Result]:
    """Kernels whose name begins with one of `names`; all if it is empty."""
    results = []
    for case in all_cases():
        if not names or case.name.startswith(tuple(names)):
            results.append(measure(case, limits))
            torch.cuda.empty_cache()
    return results


def measure(case: Case, limits: DeviceLimits) -> Result:
    num_sets = max(2, min(_MAX_SETS, 4 * _L2_BYTES // case.num_bytes + 1))
    with bench_device():
        launches = [case.make() for _ in range(num_sets)]
    num_rounds = -(-40 // num_sets) if bench_device().type == "cuda" else 1
    seconds = seconds_of_launch(launches * num_rounds)
    return Result(case.name, case.rows, seconds * 1e6, case.num_bytes / seconds / limits.bytes_per_s)


def print_kernels(results: Sequence[Result]) -> None:
    """One line per operation, one column per number of rows: microseconds (share of the copy's rate)."""
    columns = sorted({r.rows for r in results})
    lines = []
    for name in dict.fromkeys(r.name for r in results):
        cells = {r.rows: f"{r.microseconds:.1f} ({100 * r.share:.0f} %)" for r in results if r.name == name}
        lines.append([name, *(cells.get(rows, "") for rows in columns)])
    print_table(["rows: us (of a copy's rate)", *map(str, columns)], lines)
