"""A GPU's memory, as the driver and this process's allocator report it."""

from __future__ import annotations

from collections.abc import Callable

import torch


class CudaMemory:
    """The `DeviceMemory` of a GPU (memory_profile.py)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def total_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def reserved_bytes(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)

    def peak_bytes(self, work: Callable[[], None]) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)
