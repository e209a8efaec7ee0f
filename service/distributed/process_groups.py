"""The groups in which ranks exchange tensors: NCCL between GPUs, gloo between processes on a CPU."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store, TCPStore
from torch.distributed import ProcessGroup

from service.config import ParallelConfig
from service.distributed.rank_task import MeetingPlace
from service.layers.group_parallel import GroupParallel, memory_of_gpus
from service.layers.group_stage import GroupStage
from service.layers.pipeline_stage import WHOLE, PipelineStage, RankPlace
from service.layers.tensor_parallel import ALONE, TensorParallel

_HERE = "127.0.0.1"
_PATIENCE = timedelta(hours=1)
"""Timeout of a collective. A lost rank is detected much sooner by other means (rank_watch.py)."""

NoteExchange = Callable[[int], None]

ENVIRONMENT: Mapping[str, str] = {
    # Multicast of NVLink can take a host's GPUs out of service.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
"""Read by the libraries when a group is made."""

_INTERFACES = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
LOOPBACK = "lo"


def open_store(meeting: MeetingPlace | None, file: str, num_ranks: int) -> Store:
    """The store through which all ranks find each other. file: a path shared by all ranks, for no `meeting`."""
    if meeting is None:
        return FileStore(file, num_ranks)
    return TCPStore(_HERE, meeting.port, is_master=False, wait_for_workers=False, timeout=_PATIENCE)


def serve_store() -> TCPStore:
    """Rank 0's side of `open_store`: on a free port of the loopback interface."""
    listening = socket.create_server((_HERE, 0))
    port = listening.getsockname()[1]
    return TCPStore(
        _HERE,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_PATIENCE,
        master_listen_fd=listening.detach(),
    )


def join_ranks(
    rank: int,
    config: ParallelConfig,
    store: Store,
    device: torch.device,
    note_exchange: NoteExchange = lambda nanoseconds: None,
    interface: str | None = LOOPBACK,
) -> RankPlace:
    """Returns once every rank has joined. store: from `open_store`. device: this rank's own. note_exchange: as of
    GroupParallel. interface: the network interface between ranks; None: gloo and NCCL choose."""
    os.environ.update(ENVIRONMENT)
    _use_interface(interface)
    # The new name in torch 2.13 does not exist in torch 2.11.
    warnings.filterwarnings("ignore", ".*all_gather_into_tensor.* is deprecated", FutureWarning)
    is_cuda = device.type == "cuda"
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        store=store,
        rank=rank,
        world_size=config.num_ranks,
        timeout=_PATIENCE,
        device_id=device if is_cuda else None,
    )
    return place_of(rank, config, device, note_exchange)


def _use_interface(interface: str | None) -> None:
    """On one host, only the loopback interface. Between hosts, the environment's setting wins."""
    if interface == LOOPBACK:
        os.environ.update(dict.fromkeys(_INTERFACES, LOOPBACK))
    elif interface is not None:
        for name in _INTERFACES:
            os.environ.setdefault(name, interface)


def place_of(
    rank: int,
    config: ParallelConfig,
    device: torch.device,
    note_exchange: NoteExchange = lambda nanoseconds: None,
) -> RankPlace:
    """The place of a rank that has joined. All ranks must call it."""
    return RankPlace(_parallel(rank, config, device, note_exchange), _stage(rank, config))


def _parallel(rank: int, config: ParallelConfig, device: torch.device, note_exchange: NoteExchange) -> TensorParallel:
    """The tensor-parallel group of this rank's stage."""
    size = config.tensor_size
    if size == 1:
        return ALONE
    stages = [list(range(first, first + size)) for first in range(0, config.num_ranks, size)]
    if device.type != "cuda":
        return GroupParallel(_own_group(rank, stages, "gloo"), note_exchange=note_exchange)
    group = _own_group(rank, stages, "nccl", device)
    host_group = _own_group(rank, stages, "gloo")
    return GroupParallel(group, host_group, memory_of_gpus(group, host_group, device), note_exchange)


def _stage(rank: int, config: ParallelConfig) -> PipelineStage:
    if config.num_stages == 1:
        return WHOLE
    size, num_ranks = config.tensor_size, config.num_ranks
    columns = [list(range(first, num_ranks, size)) for first in range(size)]
    whole = dist.group.WORLD
    assert whole is not None
    before, behind = (rank - size) % num_ranks, (rank + size) % num_ranks
    column = _own_group(rank, columns, "gloo")
    return GroupStage(config.stage_of(rank), config.num_stages, before, behind, whole, column)


def _own_group(rank: int, groups: list[list[int]], backend: str, device: torch.device | None = None) -> ProcessGroup:
    """This rank's one of disjoint groups; all ranks must call it. Reuses the existing group of all ranks if it fits:
    another communicator would take time and memory."""
    whole = dist.group.WORLD
    if len(groups) == 1 and whole is not None and dist.get_backend(whole) == backend:
        return whole
    made = [dist.new_group(ranks, backend=backend, device_id=device) for ranks in groups]
    own: ProcessGroup = made[next(place for place, ranks in enumerate(groups) if rank in ranks)]
    return own
