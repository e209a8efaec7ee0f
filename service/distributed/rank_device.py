"""Which device a rank computes on, and which CPU cores it runs on."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Literal

import torch

from service.errors import ConfigError
from service.runner.device import choose_device

_PCI = Path("/sys/bus/pci/devices")


def rank_device(requested: Literal["auto", "cpu", "cuda"], seat: int, num_local: int) -> torch.device:
    """The rank's device: on CUDA the GPU number `seat` of CUDA_VISIBLE_DEVICES, which becomes the thread's current
    device; otherwise the CPU, which all ranks share.

    seat: the rank's index among the `num_local` ranks of its host. Raises ConfigError if the host has too few GPUs.
    """
    device = choose_device(requested)
    if device.type != "cuda":
        return device
    if torch.cuda.device_count() < num_local:
        raise ConfigError(
            f"tensor-parallel-size x pipeline-parallel-size: {num_local} ranks need one GPU each, "
            f"but only {torch.cuda.device_count()} are visible (see CUDA_VISIBLE_DEVICES)"
        )
    device = torch.device("cuda", seat)
    torch.cuda.set_device(device)
    return device


def stay_near(device: torch.device, num_local: int = 1, pci: Path = _PCI) -> None:
    """Pin this process to the cores of the GPU's NUMA node, so that launches and copies stay on that node.

    Does nothing if the system does not tell these cores, or if they are fewer than a rank's share of the host: on so
    few cores, compiling and polling for messages would slow each other down.
    """
    if device.type != "cuda":
        return
    facts: Any = torch.cuda.get_device_properties(device)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        address = f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
        allowed = os.sched_getaffinity(0)
        near = cores_of((pci / address / "local_cpulist").read_text()) & allowed
        if near and len(near) * num_local >= len(allowed):
            os.sched_setaffinity(0, near)


def cores_of(listed: str) -> set[int]:
    """ "0-3,8" -> {0, 1, 2, 3, 8}: parse the kernel's list of cores."""
    cores = set[int]()
    for part in listed.strip().split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def reserved_bytes(device: torch.device) -> int:
    """GPU memory that this process's caching allocator has reserved; 0 on a CPU. Any thread."""
    return int(torch.cuda.memory_reserved(device)) if device.type == "cuda" else 0
