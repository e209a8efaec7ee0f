"""CPU time of another process on this machine, as the kernel counts it."""

import os
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds_by_thread(pid: int) -> dict[str, float]:
    """Seconds of user and system time of a process's threads, those of one name together."""
    seconds: dict[str, float] = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        fields = rest.split()
        seconds[name] = seconds.get(name, 0.0) + (int(fields[11]) + int(fields[12])) * _TICK_S
    return seconds


def cpu_seconds(pid: int) -> float:
    """Of all its threads that live."""
    return sum(cpu_seconds_by_thread(pid).values())
