"""How many bytes the KV cache may take: measured, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

GIBIBYTE = 1 << 30

_TIGHT = 10
"""If the KV cache would be less than this many times the optimizer's moments, the moments are kept on the host. The
optimizer step then waits for them, which costs some percent of its time."""

Size = TypeVar("Size")


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Where the device's memory goes, in bytes.

    total: of the device. weights: the parameters, once (a CPU may hold them in a second form). activations: peak of a
    worst-case iteration, beyond what was held before it; 0 if it was not measured. graphs: CUDA graphs and their memory
    pool. tables: the block table, and the token counts for penalties, of all sequences. other: held by other processes
    or outside torch's allocator. kv_cache: for the blocks. training: what a fine-tuning job holds all the time, trained
    weights and optimizer. Its activations lie in blocks, and a layer step's temporary memory never coexists with an
    iteration's activations. has_moments_on_host: `training` is without the optimizer's moments.
    """

    total_bytes: int
    weights_bytes: int
    activations_bytes: int
    graphs_bytes: int
    tables_bytes: int
    other_bytes: int
    kv_cache_bytes: int
    training_bytes: int = 0
    has_moments_on_host: bool = False

    def __str__(self) -> str:
        names = ["weights", "activations", "graphs", "tables", "other", "kv_cache"]
        if self.training_bytes:
            names.insert(4, "training")
        parts = (f"{name.replace('_', ' ')} {getattr(self, f'{name}_bytes') / GIBIBYTE:.2f}" for name in names)
        return f"{', '.join(parts)} of {self.total_bytes / GIBIBYTE:.2f} GiB"


def profile_cpu(weights_bytes: int, memory_bytes: int | None, num_ranks: int = 1) -> MemoryLedger:
    """A quarter of the free memory, at most 4 GiB, divided by the ranks of this machine; or `memory_bytes`, which is
    per rank."""
    total, available = cpu_memory()
    kv_cache = memory_bytes if memory_bytes is not None else min(available // 4, 4 * GIBIBYTE) // num_ranks
    return MemoryLedger(total, weights_bytes, 0, 0, 0, max(0, total - available - weights_bytes), kv_cache)


class DeviceMemory(Protocol):
    """A device's memory, in bytes. Each call first returns what the process's allocator holds but does not need."""

    @property
    def total_bytes(self) -> int:
        """All that the device has."""
        ...

    def free_bytes(self) -> int:
        """Memory that no process has taken."""
        ...

    def reserved_bytes(self) -> int:
        """Memory that this process's allocator has taken from the device."""
        ...

    def allocated_bytes(self) -> int:
        """Memory that this process's tensors hold."""
        ...

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """The most that this process's tensors held at once while `work` ran, including tensors from before."""
        ...


class Shares(NamedTuple):
    """As in the ledger."""

    kv_cache_bytes: int
    training_bytes: int
    has_moments_on_host: bool


def share_with_training(rest_bytes: int, training_bytes: int, moments_bytes: int) -> Shares:
    """Divides what everything else leaves of a device's memory. If the cache would be small, the moments go to the
    host."""
    kv_cache = rest_bytes - training_bytes
    if _TIGHT * moments_bytes > kv_cache:
        return Shares(kv_cache + moments_bytes, training_bytes - moments_bytes, moments_bytes > 0)
    return Shares(kv_cache, training_bytes, has_moments_on_host=False)


def profile_device(
    memory: DeviceMemory,
    weights_bytes: int,
    memory_utilization: float,
    memory_bytes: int | None,
    worst_case_iteration: Callable[[], None],
    capture: Callable[[Sequence[Size]], None],
    graph_sizes: Sequence[Size],
    tables_bytes: int,
    training_bytes: int = 0,
    moments_bytes: int = 0,
) -> MemoryLedger:
    """Run the worst case, capture some graphs, and give the blocks what is left of `memory_utilization` of the device.

    capture: captures graphs of these sizes and keeps them. graph_sizes: the largest of all first. kv_cache_bytes may be
    negative: then the weights and one iteration do not fit. moments_bytes: part of `training_bytes`
    (`share_with_training`).
    """
    held = memory.allocated_bytes()
    activations = memory.peak_bytes(worst_case_iteration) - held
    other = memory.total_bytes - memory.free_bytes() - memory.reserved_bytes()
    graphs = _graph_bytes(memory, capture, graph_sizes)
    rest = int(memory.total_bytes * memory_utilization) - (held + activations + graphs + tables_bytes + other)
    shares = share_with_training(rest, training_bytes, moments_bytes)
    kv_cache = shares.kv_cache_bytes if memory_bytes is None else memory_bytes
    return MemoryLedger(
        memory.total_bytes,
        weights_bytes,
        activations,
        graphs,
        tables_bytes,
        other,
        kv_cache,
        shares.training_bytes,
        shares.has_moments_on_host,
    )


def _graph_bytes(memory: DeviceMemory, capture: Callable[[Sequence[Size]], None], sizes: Sequence[Size]) -> int:
    """Memory of the graphs of all sizes, estimated from two: the largest, which allocates the pool, and the next one,
    as an example of what each further graph adds.

    A graph takes memory outside torch's allocator too, so the device's free memory is measured.
    """
    added = []
    for size in sizes[:2]:
        before = memory.free_bytes()
        capture([size])
        added.append(max(0, before - memory.free_bytes()))
    return sum(added[:1]) + (len(sizes) - 1) * sum(added[1:])


def cpu_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """(total, available) bytes of the system or of the process's control group, whichever is less. The page cache of
    files that were read (a checkpoint) counts as available."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text()) - _file_bytes(cgroup / "memory.stat")
    except (OSError, ValueError):  # no control group, or "max"
        return total, available
    return min(total, limit), max(0, min(available, limit - used))


def _file_bytes(stat: Path) -> int:
    """The part of a control group's memory that the system can reclaim at once (page cache); 0 if it is not known."""
    try:
        told = dict(line.split() for line in stat.read_text().splitlines())
    except OSError:
        return 0
    return sum(int(told.get(name, 0)) for name in ("active_file", "inactive_file"))
