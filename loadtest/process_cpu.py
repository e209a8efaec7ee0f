"""CPU time of another process on this machine, as the kernel counts it."""

import os
from pathlib import Path
from typing import Self

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds_by_thread(pid: int) -> dict[str, float]:
    """User plus system seconds of a process by thread name; threads with the same name are added up."""
    seconds: dict[str, float] = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        fields = rest.split()
        seconds[name] = seconds.get(name, 0.0) + (int(fields[11]) + int(fields[12])) * _TICK_S
    return seconds


class CpuUse:
    """CPU time that a process uses while this context is entered.

    by_thread: seconds by thread name, set on exit; threads with the same name are added up.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: dict[str, float] = {}
        self.by_thread: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Seconds of all threads that are alive."""
        return sum(self.by_thread.values())

    def __enter__(self) -> Self:
        self._before = cpu_seconds_by_thread(self._pid)
        return self

    def __exit__(self, *fault: object) -> None:
        after = cpu_seconds_by_thread(self._pid)
        self.by_thread = {name: after[name] - self._before.get(name, 0.0) for name in after}
