"""Measured limits of a device: bytes per second of a copy, FLOP/s of a matrix product."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_ROUNDS = 8
_LONG_S = 0.5
"""Rounds that have taken so long together are enough, from the second on: a CPU may lack the dtype's instructions."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """bytes_per_s: of a copy, bytes read plus bytes written. flops_per_s: of a dense product in the model's dtype."""

    name: str
    bytes_per_s: float
    flops_per_s: float

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.bytes_per_s / 1e12:.3g} TB/s copied, {self.flops_per_s / 1e12:.3g} TFLOP/s in a GEMM"
        )


def measure_device(device_name: str, dtype_name: Literal["bfloat16", "float32"]) -> DeviceLimits:
    """The best of several rounds of each; about a second in all. On a GPU it needs half a GiB meanwhile."""
    device, dtype = torch.device(device_name), _DTYPES[dtype_name]
    is_gpu = device.type == "cuda"
    copied_bytes, size = (1 << 28, 8192) if is_gpu else (1 << 27, 1024)
    copy_s, product_s = _copy_seconds(copied_bytes, device), _product_seconds(size, dtype, device)
    if is_gpu:
        torch.cuda.empty_cache()
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{torch.get_num_threads()} CPU threads, {platform.machine()}"
    return DeviceLimits(name, 2 * copied_bytes / copy_s, 2 * size**3 / product_s)


def _copy_seconds(num_bytes: int, device: torch.device) -> float:
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return _best_seconds(lambda: target.copy_(source), device)


def _product_seconds(size: int, dtype: torch.dtype, device: torch.device) -> float:
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    return _best_seconds(lambda: left @ right, device)


def _best_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Seconds per call. On a GPU a round is ten launches in a row, so that the final synchronization adds little."""
    is_gpu = device.type == "cuda"
    num_calls = 10 if is_gpu else 1
    times = []
    for _ in range(_ROUNDS):
        if is_gpu:
            torch.cuda.synchronize(device)
        started_s = time.perf_counter()
        for _ in range(num_calls):
            work()
        if is_gpu:
            torch.cuda.synchronize(device)
        times.append((time.perf_counter() - started_s) / num_calls)
        if len(times) > 1 and sum(times) * num_calls > _LONG_S:
            break
    return min(times)
