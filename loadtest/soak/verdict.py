"""Compares a soak's results with what is allowed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from loadtest.invariants import Invariant
from loadtest.process_tree import Holdings
from loadtest.table import aligned
from loadtest.trend import line_through

WARM_UP_SHARE = 1 / 4
_FILES_BESIDE = 4
_THREADS_BESIDE = 8
"""Allowed after warm-up: a pool's last thread may start late, and a log may be opened late."""


class Bounds(NamedTuple):
    """max_growth_mb: of memory at rest. max_slope_mb_per_hour: broken if the slope is certainly steeper, or unknown;
    infinite: not checked."""

    max_growth_mb: float = 100.0
    max_slope_mb_per_hour: float = 60.0
    rests_within_s: float = 2.0


class Rest(NamedTuple):
    """The server between two rounds. at_s: since the first round began. waited_s: until it was at rest."""

    at_s: float
    waited_s: float
    held: Holdings


def invariants_of_rests(rests: Sequence[Rest], bounds: Bounds) -> list[Invariant]:
    """Invariants about memory, open files, threads, and the time to come to rest. The first quarter is warm-up."""
    begin = max(1, round(len(rests) * WARM_UP_SHARE))
    warm, later = rests[:begin], rests[begin:]
    longest_s = max((rest.waited_s for rest in rests), default=None)
    invariants = [Invariant("to rest, s, longest", longest_s, bounds.rests_within_s)]
    if not later:
        return [*invariants, Invariant("memory, MB: growth after the warm-up", None, bounds.max_growth_mb)]
    memory = [rest.held.resident_mb for rest in [warm[-1], *later]]
    files = max(rest.held.open_files for rest in warm)
    threads = max(rest.held.threads for rest in warm)
    return [
        *invariants,
        Invariant("memory, MB: growth after the warm-up", max(memory) - memory[0], bounds.max_growth_mb),
        *_invariant_of_slope([warm[-1], *later], bounds.max_slope_mb_per_hour),
        Invariant("open files at rest, growth after the warm-up", later[-1].held.open_files - files, _FILES_BESIDE),
        Invariant("threads at rest, growth after the warm-up", later[-1].held.threads - threads, _THREADS_BESIDE),
    ]


def _invariant_of_slope(rests: Sequence[Rest], most: float) -> list[Invariant]:
    if math.isinf(most):
        return []
    trend = line_through([rest.at_s / 3600 for rest in rests], [rest.held.resident_mb for rest in rests])
    found = trend.at_least if math.isfinite(trend.margin) else None
    return [Invariant("memory, MB/hour: slope, lower bound", found, most)]


def rest_table(rests: Sequence[Rest]) -> str:
    """At most twelve rows, evenly spread over the time."""
    step = max(1, -(-len(rests) // 12))
    lines = [["at rest after, s", "resident MB", "open files", "threads", "processes", "waited, s"]]
    for rest in [*rests[:-1:step], *rests[-1:]]:
        held = rest.held
        counts = [str(count) for count in (held.open_files, held.threads, held.processes)]
        lines.append([f"{rest.at_s:.0f}", f"{held.resident_mb:.1f}", *counts, f"{rest.waited_s:.2f}"])
    return aligned(lines, left=())
