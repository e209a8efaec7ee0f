"""Which kernels take a step's time, where kernels start before the previous one has ended.

With dependent launch (kernels/dependent_launch.py) a kernel's duration includes waiting for its predecessors, so a sum
of durations counts the same time two or three times. Here each kernel gets the time from the latest end before its own
to its own end.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All `count` launches of a kernel with one grid. own_us: time not shared with earlier kernels. gap_us: time before
    them in which nothing ran. Both are sums over the launches."""

    name: str
    count: int
    own_us: float
    gap_us: float


def trace_events(profile: torch.profiler.profile) -> list[dict[str, Any]]:
    """Events in Chrome's trace format."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def kernel_times(events: Iterable[Mapping[str, Any]]) -> list[KernelTime]:
    """Times from a trace of one device; most time first."""
    kernels = sorted(
        (event for event in events if event.get("cat") == "kernel" and "dur" in event),
        key=lambda event: float(event["ts"]) + float(event["dur"]),
    )
    times: dict[str, KernelTime] = {}
    last_us = float(kernels[0]["ts"]) if kernels else 0.0
    for event in kernels:
        start_us = float(event["ts"])
        end_us = start_us + float(event["dur"])
        name = f"{event['name'][:70]} {_grid(event.get('args', {}))}"
        before = times.get(name, KernelTime(name, 0, 0.0, 0.0))
        own_us, gap_us = end_us - max(last_us, start_us), max(0.0, start_us - last_us)
        times[name] = KernelTime(name, before.count + 1, before.own_us + own_us, before.gap_us + gap_us)
        last_us = end_us
    return sorted(times.values(), key=lambda time: -time.own_us)


def print_kernel_times(times: Sequence[KernelTime], num_steps: int, num_rows: int) -> None:
    """Print the times of a profile of `num_steps` steps."""
    total_us, gap_us = (sum(column) / num_steps for column in zip(*((t.own_us, t.gap_us) for t in times), strict=True))
    print(f"{total_us:.0f} us of kernels a step, {gap_us:.0f} between them; launches a step, own us each, us a step:")
    for time in times[:num_rows]:
        print(
            f"{time.count / num_steps:7.1f} {time.own_us / time.count:8.2f} {time.own_us / num_steps:9.1f}  {time.name}"
        )


def _grid(arguments: Mapping[str, Any]) -> str:
    return "x".join(str(size) for size in arguments.get("grid", ()))
