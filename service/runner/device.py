"""Which device and which number format a model runs in."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from service.errors import ConfigError
from service.layers.linear import Linear
from service.layers.packed_weight import can_pack
from service.models.model_config import CheckpointDtype

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def choose_device(requested: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """`auto` is cuda where there is one. Raises ConfigError when cuda is asked for and absent."""
    has_cuda = torch.cuda.is_available()
    if requested == "cuda" and not has_cuda:
        raise ConfigError("device: cuda was asked for, but torch sees no CUDA device")
    return torch.device("cuda" if requested != "cpu" and has_cuda else "cpu")


def memory_bytes(device: torch.device) -> int:
    """All the memory that a GPU has; 0 for a CPU."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 0


def choose_dtype(
    requested: Literal["auto", "bfloat16", "float32"], device: torch.device, checkpoint: CheckpointDtype
) -> torch.dtype:
    """`auto` is bf16 on a GPU. On a CPU it is bf16 for a 16-bit checkpoint where bf16 is faster, else fp32."""
    if requested != "auto":
        return _DTYPES[requested]
    if device.type == "cuda":
        return torch.bfloat16
    if checkpoint != "float32" and can_pack(torch.bfloat16) and _bf16_is_faster():
        return torch.bfloat16
    return torch.float32


def use_cores(device: torch.device) -> int:
    """Let torch use as many threads as this process has cores; returns how many.

    Torch itself counts the machine's cores, also where a container may use fewer, and threads that have to share a
    core wait for each other in every operation. OMP_NUM_THREADS, when set, is left in charge.
    """
    if device.type == "cpu" and not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(available_cores())
    return torch.get_num_threads()


def available_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use: its affinity mask, or less by its control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return cores


def _bf16_is_faster() -> bool:
    """Times one row through a matrix of both formats, as decode does. A few milliseconds."""
    return _linear_seconds(torch.bfloat16) < _linear_seconds(torch.float32)


def _linear_seconds(dtype: torch.dtype) -> float:
    linear = Linear(1024, 4096)
    linear.weight = nn.Parameter(torch.zeros(4096, 1024, dtype=dtype), requires_grad=False)
    linear.pack(in_two_forms=True)
    x = torch.zeros(4, 1024, dtype=dtype)
    seconds = []
    with torch.inference_mode():
        for _ in range(12):
            start_s = time.perf_counter()
            linear(x)
            seconds.append(time.perf_counter() - start_s)
    return min(seconds)
