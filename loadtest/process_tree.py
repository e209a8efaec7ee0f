"""Memory, open files and threads of a process and its descendants, as the kernel counts them. Linux only."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Holdings(NamedTuple):
    """Sums over a process and its descendants."""

    resident_mb: float
    open_files: int
    threads: int
    processes: int


def holdings_of(process_id: int) -> Holdings:
    """The holdings now. Memory shared by two processes counts twice. Raises ProcessLookupError if the process has
    ended; a descendant that ends meanwhile is left out.
    """
    totals = [0.0, 0, 0, 0]
    for each in [process_id, *_descendants(process_id)]:
        try:
            one = _holdings_of_one(each)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            if each == process_id:
                raise ProcessLookupError(process_id) from None
            continue
        totals = [total + part for total, part in zip(totals, one, strict=True)]
    return Holdings(totals[0], *map(int, totals[1:]))


def _holdings_of_one(process_id: int) -> Holdings:
    folder = _PROC / str(process_id)
    fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    if "VmRSS" not in fields:  # a zombie: it has ended, but its parent has not waited for it
        raise ProcessLookupError(process_id)
    open_files = sum(1 for _ in (folder / "fd").iterdir())
    return Holdings(int(fields["VmRSS"].split()[0]) / 1024, open_files, int(fields["Threads"]), 1)


def _descendants(process_id: int) -> Iterator[int]:
    try:
        children = [
            int(child)
            for thread in (_PROC / str(process_id) / "task").iterdir()
            for child in (thread / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in children:
        yield child
        yield from _descendants(child)
