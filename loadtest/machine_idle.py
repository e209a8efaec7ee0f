"""Whether the machine is doing something else: the first question to a surprising figure."""

import time
from pathlib import Path

_STAT = Path("/proc/stat")
_SAMPLE_S = 0.5
_PAUSE_S = 2.0


def idle_share(sample_s: float = _SAMPLE_S) -> float | None:
    """Share of all cores' time that was idle during the next `sample_s` seconds; None where it cannot be
    known.
    """
    before = _cpu_ticks()
    time.sleep(sample_s)
    after = _cpu_ticks()
    if before is None or after is None or after[1] == before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def wait_until_idle(share: float, timeout_s: float) -> float | None:
    """Returns once at least `share` is idle, or after `timeout_s`; the last idle share, None if it is not
    known.
    """
    deadline = time.monotonic() + timeout_s
    while (idle := idle_share()) is not None and idle < share and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    return idle


def _cpu_ticks() -> tuple[int, int] | None:
    """Idle and all ticks of all cores since the machine started; waiting for a disk counts as idle."""
    if not _STAT.exists():
        return None
    fields = [int(field) for field in _STAT.read_text().splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)
