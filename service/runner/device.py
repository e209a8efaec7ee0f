"""Which device a model runs on, and on how many of its cores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import torch

from service.errors import ConfigError


def choose_device(requested: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """`auto` is cuda where there is one. Raises ConfigError when cuda is asked for and absent."""
    has_cuda = torch.cuda.is_available()
    if requested == "cuda" and not has_cuda:
        raise ConfigError("device: cuda was asked for, but torch sees no CUDA device")
    return torch.device("cuda" if requested != "cpu" and has_cuda else "cpu")


def memory_bytes(device: torch.device) -> int:
    """Total memory of a GPU; 0 for a CPU."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 0


def use_cores(device: torch.device, num_ranks: int = 1) -> int:
    """Set torch's number of threads to this process's cores, or to its share of them if several ranks compute here;
    returns the number.

    Torch itself counts the machine's cores, even where a container may use fewer. Threads that share a core then wait
    for each other in every operation. If OMP_NUM_THREADS is set, it decides.
    """
    if device.type == "cpu" and not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(max(1, available_cores() // num_ranks))
    return torch.get_num_threads()


def available_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use: its affinity mask, or less by its control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return cores
