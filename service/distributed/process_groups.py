"""The groups in which ranks exchange tensors: NCCL between GPUs, gloo between processes on a CPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from service.layers.group_parallel import GroupParallel, memory_of_gpus

_PATIENCE = timedelta(hours=1)
"""Of a collective. Who waits so long waits for a rank that is lost, which is found out otherwise."""

ENVIRONMENT: Mapping[str, str] = {
    # Multicast of NVLink can take a host's GPUs out of service.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    # All ranks are on this host, and nobody else is to reach them.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
"""Read by the libraries when a group is made."""


def join_ranks(
    rank: int,
    num_ranks: int,
    meeting_point: str,
    device: torch.device,
    note_exchange: Callable[[int], None] = lambda nanoseconds: None,
) -> GroupParallel:
    """Returns once every rank has come. meeting_point: a file that all share. device: this rank's own. note_exchange:
    as GroupParallel takes it."""
    os.environ.update(ENVIRONMENT)
    # Torch 2.13 has a new name for it, which torch 2.11 does not know.
    warnings.filterwarnings("ignore", ".*all_gather_into_tensor.* is deprecated", FutureWarning)
    is_cuda = device.type == "cuda"
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        store=FileStore(meeting_point, num_ranks),
        rank=rank,
        world_size=num_ranks,
        timeout=_PATIENCE,
        device_id=device if is_cuda else None,
    )
    group = dist.group.WORLD
    assert group is not None
    if not is_cuda:
        return GroupParallel(group, note_exchange=note_exchange)
    host_group = dist.new_group(backend="gloo")
    return GroupParallel(group, host_group, memory_of_gpus(group, host_group, device), note_exchange)
