"""Ranks on this host's GPUs, one each, over NCCL."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from loadtest.bench.ranks import run_ranks


def run_gpu_ranks(num_ranks: int, work: Callable[..., None], *args: object) -> int:
    """Run work(group, *args) in a new process for each rank, without NVLink multicast. Returns as `run_ranks`; exits
    if there are too few GPUs."""
    if torch.cuda.device_count() < num_ranks:
        sys.exit(f"{num_ranks} GPUs are needed, {torch.cuda.device_count()} are there")
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    return run_ranks(num_ranks, _on_a_gpu, num_ranks, work, *args)


def _on_a_gpu(rank: int, meeting_point: str, num_ranks: int, work: Callable[..., None], *args: object) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    store = FileStore(meeting_point, num_ranks)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=num_ranks, device_id=device)
    work(dist.group.WORLD, *args)
    dist.destroy_process_group()
