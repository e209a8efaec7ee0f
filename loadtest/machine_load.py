"""How busy other processes keep the machine: the first thing to check when a figure surprises. Linux only; unknown
elsewhere.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_SAMPLE_S = 0.5
_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Clock ticks since the machine started: of all cores; of these, idle ones; and those used by this process and its
    descendants.
    """

    all: int
    idle: int
    own: int

    def share_of_others(self, later: "CpuTicks") -> float:
        """Share of all cores' time, between `self` and `later`, that other processes (or other guests) used."""
        busy = (later.all - self.all) - (later.idle - self.idle)
        return max(0, busy - (later.own - self.own)) / max(1, later.all - self.all)


def read_cpu_ticks() -> CpuTicks | None:
    """The counters now; None if the system has none. A descendant that has ended counts only after it was waited
    for.
    """
    try:
        lines = (_PROC / "stat").read_text().splitlines()
    except OSError:
        return None
    fields = [int(field) for field in lines[0].split()[1:9]]
    return CpuTicks(sum(fields), fields[3] + fields[4], _own_ticks())


def share_of_others_during(work: Callable[[], float]) -> tuple[float, float | None]:
    """Do the work. Returns its result and the share of all cores' time that others used meanwhile; None: unknown."""
    before = read_cpu_ticks()
    answer = work()
    after = read_cpu_ticks()
    return answer, before.share_of_others(after) if before and after else None


def wait_until_free(share_of_others: float, timeout_s: float) -> None:
    """Returns as soon as others use at most this share of the cores' time, or the share is unknown, or after
    `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        _, others = share_of_others_during(_sample)
        if others is None or others <= share_of_others:
            return
        time.sleep(_PAUSE_S)


def _sample() -> float:
    time.sleep(_SAMPLE_S)
    return _SAMPLE_S


def _own_ticks() -> int:
    """User and system ticks of this process and its descendants, including children that were waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(after_name[1])
        ticks[int(folder.name)] = sum(int(field) for field in after_name[11:15])
    return sum(count for process_id, count in ticks.items() if _descends(process_id, os.getpid(), parents))


def _descends(process_id: int, ancestor: int, parents: dict[int, int]) -> bool:
    while process_id in parents and process_id != ancestor:
        process_id = parents[process_id]
    return process_id == ancestor
