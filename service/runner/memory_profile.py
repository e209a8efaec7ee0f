"""How many bytes the KV cache may have: measured, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

GIBIBYTE = 1 << 30

Size = TypeVar("Size")


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Where the device's memory goes, in bytes.

    total: of the device. weights: the parameters, once (a CPU may hold them in a second form). activations: peak of
    a worst-case iteration beyond what was held before it; 0 where it was not measured. graphs: CUDA graphs and their
    memory pool. tables: the block table and the penalties' token counts of all sequences. other: held by other
    processes or outside torch's allocator. kv_cache: for the blocks.
    """

    total_bytes: int
    weights_bytes: int
    activations_bytes: int
    graphs_bytes: int
    tables_bytes: int
    other_bytes: int
    kv_cache_bytes: int

    def __str__(self) -> str:
        names = ("weights", "activations", "graphs", "tables", "other", "kv_cache")
        parts = (f"{name.replace('_', ' ')} {getattr(self, f'{name}_bytes') / GIBIBYTE:.2f}" for name in names)
        return f"{', '.join(parts)} of {self.total_bytes / GIBIBYTE:.2f} GiB"


def profile_cpu(weights_bytes: int, memory_bytes: int | None) -> MemoryLedger:
    """A quarter of what is free, at most 4 GiB, unless `memory_bytes` says how much."""
    total, available = cpu_memory()
    kv_cache = memory_bytes if memory_bytes is not None else min(available // 4, 4 * GIBIBYTE)
    return MemoryLedger(total, weights_bytes, 0, 0, 0, max(0, total - available - weights_bytes), kv_cache)


def profile_cuda(
    device: torch.device,
    weights_bytes: int,
    memory_utilization: float,
    memory_bytes: int | None,
    worst_case_iteration: Callable[[], None],
    capture: Callable[[Sequence[Size]], None],
    graph_sizes: Sequence[Size],
    tables_bytes: int,
) -> MemoryLedger:
    """Run the worst case, capture some graphs, and give the blocks what is left of `memory_utilization` of the device.

    capture: makes graphs of these sizes, which are kept. graph_sizes: largest first. kv_cache_bytes may come out
    negative: then not even the weights and one iteration fit the share.
    """
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    worst_case_iteration()
    torch.cuda.synchronize(device)
    activations = torch.cuda.max_memory_allocated(device) - held
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    other = total - free - torch.cuda.memory_reserved(device)
    graphs = _graph_bytes(device, capture, graph_sizes)
    measured = int(total * memory_utilization) - held - activations - graphs - tables_bytes - other
    kv_cache = measured if memory_bytes is None else memory_bytes
    return MemoryLedger(total, weights_bytes, activations, graphs, tables_bytes, other, kv_cache)


def _graph_bytes(device: torch.device, capture: Callable[[Sequence[Size]], None], sizes: Sequence[Size]) -> int:
    """Of graphs of all sizes: the largest brings the pool, and each other is taken to add what the second adds."""
    free = []
    for size in sizes[:2]:
        torch.cuda.empty_cache()
        before, _ = torch.cuda.mem_get_info(device)
        capture([size])
        torch.cuda.empty_cache()
        after, _ = torch.cuda.mem_get_info(device)
        free.append(max(0, before - after))
    return sum(free[:1]) + (len(sizes) - 1) * sum(free[1:])


def cpu_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """(total, available) bytes, by the system or by the process's control group, whichever has less."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):  # no control group, or "max"
        return total, available
    return min(total, limit), max(0, min(available, limit - used))
